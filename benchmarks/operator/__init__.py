"""The operator at scale: 1,000 servers and 10,000 pods on a real API server, beside a controller in Go that does the same."""
