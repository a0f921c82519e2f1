"""The only place with kopf: events become keys, keys become `reconcile(key)`."""
