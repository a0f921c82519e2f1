"""Measuring: what the replicas carry, as `Load` or `LoadUnknown`, by reading each pod's /metrics or by asking a Prometheus.

Both ways end in the same samples of one scrape a pod, and `replica.py` turns these into numbers. So the two can't differ in
what they make of ranks, copies, missing series or broken numbers; PromQL aggregates nothing here.

`metric_names.py` the names; `exposition.py` the text format; `replica.py` samples to numbers; `scrape.py` and
`prometheus.py` (texts in `queries.py`) the two sources.
"""
