"""An SGLang plugin that lets speculation start on a CPU without AMX instructions.

SGLang wires speculative decoding on CPUs for its `intel_amx` attention backend alone and picks that backend only where it sees
AMX. The backend's two attention operators come from the `sgl_kernel` stand-in beside this file and need no AMX, so the answer is
overridden for the choice of the backend; everything else goes on asking the real CPU.
"""


def load() -> None:
    from sglang.srt.runtime_context import override_platform

    override_platform(has_amx=True).install()
