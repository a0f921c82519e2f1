"""The only place that talks to Kubernetes: observe, apply (server-side), events."""
