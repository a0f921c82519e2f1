"""The command line of SGLang 0.5.23: the one place that knows its flags.

`sglang.launch_server` parses with argparse, where the last of two equal flags wins. Ours come first and the user's come last,
so an argument of the user's overrides a default of ours without anybody having to parse it.

Keys are never here: an argument list can be read by every process of the node. The launcher takes them from the environment.
"""

from __future__ import annotations

import math

from specserver.api import labels
from specserver.api.v1alpha1 import SpeculativeServer
from specserver.build.config import adaptive_rungs
from specserver.build.models import engine_path, wanted_draft


def build_arguments(server: SpeculativeServer) -> list[str]:
    """Arguments of the launcher's container, as they stand in the pod.

    The user's items are copied byte for byte, so Kubernetes' own rule holds for them: `$(NAME)` becomes the variable's value
    and `$$(NAME)` stays `$(NAME)`. Values from the resource's other fields are protected from that.
    """
    ours = [*_model(server), *_serving(server), *_parallelism(server), *_capacity(server), *_speculation(server)]
    return [*(argument.replace("$", "$$") for argument in ours), *server.spec.engine.args]


def _model(server: SpeculativeServer) -> list[str]:
    model = server.spec.model
    arguments = ["--model-path", engine_path(server, model.uri)]
    if model.revision is not None:
        arguments += ["--revision", model.revision]
    arguments += ["--served-model-name", model.served_name or server.name]
    if model.trust_remote_code:
        arguments += ["--trust-remote-code"]
    return arguments


def _serving(server: SpeculativeServer) -> list[str]:
    return ["--host", "0.0.0.0", "--port", str(server.spec.engine.port), "--enable-metrics"]


def _parallelism(server: SpeculativeServer) -> list[str]:
    sizes = server.spec.engine.parallelism
    flags = (("--tp-size", sizes.tensor), ("--pp-size", sizes.pipeline), ("--dp-size", sizes.data))
    return [argument for flag, size in flags if size > 1 for argument in (flag, str(size))]


def _capacity(server: SpeculativeServer) -> list[str]:
    """Batch limit, CUDA graphs up to that limit, attention kernels.

    Without a limit of its own, SGLang admits 48 requests once it speculates, and takes the largest captured batch from the
    GPU's memory size, whatever the limit: a batch beyond it runs without graphs, several times slower.
    """
    limit = str(_requests_per_scheduler(server))
    arguments = ["--max-running-requests", limit, "--cuda-graph-max-bs-decode", limit]
    if server.spec.engine.attention_backend is not None:
        arguments += ["--attention-backend", server.spec.engine.attention_backend]
    return arguments


def _requests_per_scheduler(server: SpeculativeServer) -> int:
    """`maxRunningRequests` speaks of a replica. SGLang divides its flag only among attention-parallel groups; each plain
    data-parallel copy takes it whole, so the division for those is ours."""
    engine = server.spec.engine
    if "--enable-dp-attention" in engine.args:
        return engine.max_running_requests
    return math.ceil(engine.max_running_requests / engine.parallelism.data)


def _speculation(server: SpeculativeServer) -> list[str]:
    """Speculation with all step counts above 0 captured from the start, so that a switch at run time needs no start.

    The start value is the ladder's largest: it sizes buffers that smaller step counts share. One draft a step (topk 1) is
    what SGLang can adapt at run time; the verify batch then holds the drafted tokens and one more. A ladder of 0 and one
    other step count needs nothing adaptive of SGLang: 0 is the plugin's.
    """
    draft = wanted_draft(server)
    if draft is None:
        return []
    ladder = server.spec.speculation.ladder
    arguments = [
        "--speculative-algorithm", server.spec.speculation.algorithm.value,
        "--speculative-draft-model-path", engine_path(server, draft.uri),
    ]  # fmt: skip
    if draft.revision is not None:
        arguments += ["--speculative-draft-model-revision", draft.revision]
    arguments += [
        "--speculative-num-steps", str(ladder[-1]),
        "--speculative-eagle-topk", "1",
        "--speculative-num-draft-tokens", str(ladder[-1] + 1),
    ]  # fmt: skip
    rungs = adaptive_rungs(server)
    if rungs is not None:
        file = f"{labels.POLICY_DIRECTORY}/{labels.ladder_file_name(rungs)}"
        arguments += ["--speculative-adaptive", "--speculative-adaptive-config", file]
    return arguments
