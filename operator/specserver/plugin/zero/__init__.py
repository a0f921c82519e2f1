"""Zero steps as plain decode, on an engine that speculates.

SGLang's own zero step is a verify round of one token, followed by the draft's extend: 6 to 11 % slower than an engine
without speculation on FlashAttention 3, and up to 3.8 times on Triton. Here a zero round is what such an engine does: the
target's decode graph and the ordinary sampler, without an adaptive state of its own, so that a switch is a branch.

dialect.py   what differs between SGLang's versions
fit.py       which engines, drafts and rounds this fits, and why not the others
graphs.py    the decode graphs, captured beside the verify graphs
draft_kv.py  the KV-only write: keeps the draft's K and V warm through zero rounds
draft_kv_queue.py   rows of many rounds that wait to be written together
draft_kv_graphs.py  the write's graphs, on a stream of their own
round.py     one round
prompt.py    a prompt in a zero phase
step.py      when a round is plain, when it is a bridge back, what is counted
wrap.py      the functions of SGLang that are wrapped

The draft must not go cold: its K and V of the tokens decoded in zero rounds would be bytes of the slots' earlier owners,
the next drafts wrong, and with the prefix cache so would be those of every later turn of the conversation. Rejected: to
store a whole phase's hidden states and catch up before the first drafts (memory without a bound, and a pause); to
leave the holes and call those requests cold (stock's skip flag does; acceptance falls to a third until the request ends).
"""
