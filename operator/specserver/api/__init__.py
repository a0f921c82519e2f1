"""The resource's types: `SpeculativeServer` v1alpha1, its conditions, and every name that we put into a cluster."""
