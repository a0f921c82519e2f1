"""An SGLang plugin that lets speculation start on a CPU without AMX instructions.

SGLang wires speculative decoding on CPUs for its `intel_amx` attention backend alone and picks that backend only where it sees
AMX. The backend's two attention operators come from the `sgl_kernel` stand-in beside this file and need no AMX, so the answer is
overridden for the choice of the backend; everything else goes on asking the real CPU.

With pages of several tokens, SGLang looks up a request's last slot with a Triton kernel, which a CPU has none of; its own variant
in torch takes that place.
"""


def load() -> None:
    from sglang.srt.mem_cache import allocation
    from sglang.srt.runtime_context import override_platform

    override_platform(has_amx=True).install()
    allocation.get_last_loc_triton = allocation.get_last_loc_torch
