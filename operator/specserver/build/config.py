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
from specserver.policy.document import Policy

Ladder = tuple[int, ...]

_LADDER_FILE = re.compile(r"^ladder-([0-9]{1,2}(?:-[0-9]{1,2})*)\.json$")


def build_policy(server: SpeculativeServer) -> Policy:
    """The policy as the resource states it. Its revision is the resource's generation: higher is newer."""
    speculation = server.spec.speculation
    return Policy(
        revision=server.generation,
        mode=speculation.mode.value,
        strategy=speculation.policy.strategy,
        steps=speculation.ladder,
        disable_above=speculation.policy.disable_above,
        enable_below=speculation.policy.enable_below,
        min_dwell_seconds=quantities.seconds(speculation.policy.min_dwell),
    )


def build_policy_config(server: SpeculativeServer, earlier_ladders: Iterable[Ladder] = ()) -> KubernetesObject:
    """The ConfigMap `<name>-policy`.

    earlier_ladders   ladders of the live ConfigMap (`ladders_in`). A pod of an older revision whose container restarts in
                      the middle of a rollout still asks for its own ladder's file, so no file is taken away.
    """
    ladders = sorted({server.spec.speculation.ladder, *earlier_ladders})
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": build_metadata(server, labels.policy_config_map_name(server.name)),
        "data": {
            **{labels.ladder_file_name(ladder): _adaptive_candidates(ladder) for ladder in ladders},
            labels.POLICY_FILE: json.dumps(build_policy(server).to_document()),
        },
    }


def ladders_in(config_map: Mapping[str, Any] | None) -> tuple[Ladder, ...]:
    """The ladders whose files a live policy ConfigMap holds; read from the file names, since contents follow from them."""
    names = (config_map or {}).get("data") or {}
    matches = (_LADDER_FILE.match(name) for name in sorted(names))
    return tuple(tuple(int(steps) for steps in match.group(1).split("-")) for match in matches if match)


def _adaptive_candidates(ladder: Ladder) -> str:
    """SGLang's adaptive configuration: a single slot for all batch sizes, so that every step count has graphs for all."""
    return json.dumps({"1": {"candidate_steps": list(ladder)}})
