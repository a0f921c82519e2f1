"""Decisions. Pure: no I/O, no clock, no kopf, no Kubernetes client; time is always an argument."""
