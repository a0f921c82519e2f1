"""The SGLang plugin: in the scheduler it chooses the step count, in the HTTP process it serves the control API.

entry.py      what SGLang calls: decides which hooks this process gets
support.py    which SGLang versions and which of its functions the hooks fit
versions.py   what differs between those versions
hooks.py      every hook target, and the guard around each hook
arming.py     whether this engine can be controlled, or why not (obstacles.py: the causes)
state.py      one scheduler rank: policy in force, decisions
rounds.py     what a round cost, told from when results arrive
tally.py      what was counted of rounds
zero/         zero steps as plain decode
channel.py    messages between the HTTP process and the ranks
control.py    the HTTP routes (force.py: a step count by hand; worker.py: further HTTP processes)
metrics.py    specserver_* on the engine's own /metrics
launcher.py   process 1 of the container; serve.py is its child, which runs SGLang

Importing a module here imports neither SGLang nor torch: every process of the engine loads the plugin, also those that
need little.
"""
