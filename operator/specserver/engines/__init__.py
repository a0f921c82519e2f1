"""The only place that talks to running engines: push a policy, read back what each rank has.

`http.py` opens the connections (also for `load/scrape.py`), `wire.py` checks what an engine says, `client.py` joins the two.
"""
