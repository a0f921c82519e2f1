"""What differs between the SGLang versions that the plugin fits, in one place.

The wrapped functions are listed in hooks.py with their parameters, and where a version has others, with those too. Here
is the rest: facts that SGLang keeps in other places from version to version. The version that is installed decides which
place is read; trying one place after the other would find a wrong one as readily as the right one.

| fact                     | 0.5.17, 0.5.20                       | 0.5.22, 0.5.23                 |
|--------------------------|--------------------------------------|--------------------------------|
| data-parallel rank       | `scheduler.ps.dp_rank`               | `get_parallel().dp_rank`       |
| data-parallel attention  | `get_parallel().enable_dp_attention` | `get_parallel().attn_dp_enabled` |

The HTTP process of 0.5.17 has no run-time context at all, so what is needed there is read from the arguments that SGLang
hands to its server, in every version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SUPPORTED_VERSIONS = ("0.5.17", "0.5.20", "0.5.22", "0.5.23")
_RANKS_IN_SCHEDULER = ("0.5.17", "0.5.20")


@dataclass(frozen=True)
class Parallel:
    """Where a scheduler stands among the others.

    data_parallel_rank       None where there is one data-parallel rank alone
    attention_data_parallel  ranks of one group decode different requests
    """

    tensor_rank: int
    tensor_ranks: int
    data_parallel_rank: int | None
    data_parallel_ranks: int
    pipeline_ranks: int
    attention_data_parallel: bool


def read_parallel(scheduler: Any | None, version: str) -> Parallel:
    """Of this process; an unknown version is read as the newest one. Before there is a scheduler, older versions know no
    data-parallel rank."""
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    older = version in _RANKS_IN_SCHEDULER
    return Parallel(
        tensor_rank=parallel.tp_rank,
        tensor_ranks=parallel.tp_size,
        data_parallel_rank=_older_rank(scheduler) if older else parallel.dp_rank,
        data_parallel_ranks=parallel.dp_size,
        pipeline_ranks=parallel.pp_size,
        attention_data_parallel=bool(parallel.enable_dp_attention if older else parallel.attn_dp_enabled),
    )


def _older_rank(scheduler: Any | None) -> int | None:
    return None if scheduler is None else scheduler.ps.dp_rank


def read_profile_key(parallel: Parallel, version: str) -> dict[str, str]:
    """What step costs depend on, as a profile names it; see `policy.profile.KEY_FIELDS`."""
    import torch
    from sglang.srt.runtime_context import get_exec, get_model, get_spec

    return {
        "model": str(get_model().model_path),
        "draft": str(get_spec().speculative_draft_model_path),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "parallelism": f"tp{parallel.tensor_ranks}",
        "attentionBackend": str(get_exec().kernel.attention_backend),
        "engineVersion": version,
    }
