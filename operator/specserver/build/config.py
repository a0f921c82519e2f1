"""The policy that an engine starts with, and the ladder file that SGLang reads: one ConfigMap, mounted as a directory.

A running engine gets a new policy over HTTP; the file serves an engine that starts while the operator is away. Mounted as a
directory (not by subPath) it follows the ConfigMap, so a container that restarts finds the newest bounds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from specserver.api import labels, quantities
from specserver.api.v1alpha1 import SpeculativeServer
from specserver.build.metadata import KubernetesObject, build_metadata
from specserver.policy.document import Policy, Probe

Ladder = tuple[int, ...]

MIN_ADAPTIVE_RUNGS = 2
"""Of step counts above 0. A single one is SGLang's static step count, and adapting between it and 0 is the plugin's alone."""

DEFAULT_THRESHOLD = 64
"""disableAbove of strategy Threshold where the resource gives none."""

_LADDER_FILE = re.compile(r"^ladder-([0-9]{1,2}(?:-[0-9]{1,2})*)\.json$")


def build_policy(server: SpeculativeServer) -> Policy:
    """The policy as the resource states it. Its revision is the resource's generation: higher is newer."""
    speculation = server.spec.speculation
    wish = speculation.policy
    disable_above, enable_below = _bounds(server)
    return Policy(
        revision=server.generation,
        mode=speculation.mode.value,
        strategy=wish.strategy,
        steps=speculation.ladder,
        disable_above=disable_above,
        enable_below=enable_below,
        min_dwell_seconds=quantities.seconds(wish.min_dwell),
        margin_up=float(wish.margin_up),
        margin_down=float(wish.margin_down),
        min_accept_length=float(wish.min_accept_length),
        probe=Probe(
            max_duty=float(wish.probe.max_duty),
            rounds=wish.probe.rounds,
            min_interval_seconds=quantities.seconds(wish.probe.min_interval),
            max_interval_seconds=quantities.seconds(wish.probe.max_interval),
        ),
        table=tuple((row.running, row.steps) for row in wish.table or ()),
    )


def _bounds(server: SpeculativeServer) -> tuple[int, int]:
    """disableAbove and enableBelow. Where there is no bound, one that an engine can't exceed: all it can run at once."""
    wish = server.spec.speculation.policy
    unset = DEFAULT_THRESHOLD if wish.strategy == "Threshold" else server.spec.engine.max_running_requests
    above = wish.disable_above if wish.disable_above is not None else unset
    return above, wish.enable_below if wish.enable_below is not None else 3 * above // 4


def build_policy_config(server: SpeculativeServer, earlier_ladders: Iterable[Ladder] = ()) -> KubernetesObject:
    """The ConfigMap `<name>-policy`.

    earlier_ladders   what the files of the live ConfigMap list (`ladders_in`). A pod of an older revision whose container
                      restarts in the middle of a rollout still asks for its own ladder's file, so no file is taken away.
    """
    rungs = adaptive_rungs(server)
    ladders = sorted({*earlier_ladders, *([rungs] if rungs else [])})
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": build_metadata(server, labels.policy_config_map_name(server.name)),
        "data": {
            **{labels.ladder_file_name(ladder): _adaptive_candidates(ladder) for ladder in ladders},
            labels.POLICY_FILE: json.dumps(build_policy(server).to_document()),
        },
    }


def adaptive_rungs(server: SpeculativeServer) -> Ladder | None:
    """The step counts that SGLang prepares beside one another, or None where it prepares one alone.

    0 is not among them: the plugin's zero step is plain decode, which needs no prepared state of SGLang's, and one would cost
    memory (a fifth of a gigabyte on FlashAttention 3, a whole one on Triton) and two seconds of every start.
    """
    rungs = tuple(steps for steps in server.spec.speculation.ladder if steps > 0)
    return rungs if len(rungs) >= MIN_ADAPTIVE_RUNGS else None


def ladders_in(config_map: Mapping[str, Any] | None) -> tuple[Ladder, ...]:
    """What the ladder files of a live policy ConfigMap list; read from the file names, since contents follow from them."""
    names = (config_map or {}).get("data") or {}
    matches = (_LADDER_FILE.match(name) for name in sorted(names))
    return tuple(tuple(int(steps) for steps in match.group(1).split("-")) for match in matches if match)


def _adaptive_candidates(ladder: Ladder) -> str:
    """SGLang's adaptive configuration: a single slot for all batch sizes, so that every step count has graphs for all."""
    return json.dumps({"1": {"candidate_steps": list(ladder)}})
