"""Where model and draft are: the path that the engine is given, and the volume claims that have to be mounted for it."""

from __future__ import annotations

from dataclasses import dataclass

from specserver.api import labels
from specserver.api.v1alpha1 import DraftModel, Mode, SpeculativeServer
from specserver.build.metadata import BuildInvalid

MODEL_DIRECTORY = "/mnt/specserver/model"
DRAFT_DIRECTORY = "/mnt/specserver/draft"


@dataclass(frozen=True)
class ClaimMount:
    """A PersistentVolumeClaim, mounted read-only."""

    volume: str
    claim: str
    directory: str


def wanted_draft(server: SpeculativeServer) -> DraftModel | None:
    """The draft that the engine loads: none in mode Never, whose pods keep that memory for the KV cache."""
    speculation = server.spec.speculation
    if speculation.mode is Mode.NEVER:
        return None
    if speculation.draft_model is None:
        raise BuildInvalid("spec.speculation.draftModel", "needed unless mode is Never: give draftModel.uri")
    return speculation.draft_model


def claim_mounts(server: SpeculativeServer) -> tuple[ClaimMount, ...]:
    """One mount a claim. A claim that holds both models is mounted once: a kubelet can wait for ever for a pod that
    has the same claim in two volumes."""
    draft = wanted_draft(server)
    places = [(server.spec.model.uri, labels.MODEL_VOLUME, MODEL_DIRECTORY)]
    if draft is not None:
        places.append((draft.uri, labels.DRAFT_VOLUME, DRAFT_DIRECTORY))
    mounts: dict[str, ClaimMount] = {}
    for uri, volume, directory in places:
        scheme, rest = _split(uri)
        if scheme == "pvc":
            claim = rest.partition("/")[0]
            mounts.setdefault(claim, ClaimMount(volume, claim, directory))
    return tuple(mounts.values())


def engine_path(server: SpeculativeServer, uri: str) -> str:
    """What SGLang takes for a model: `org/name` on the hub, or a directory in the container."""
    scheme, rest = _split(uri)
    if scheme != "pvc":
        return rest
    claim, _, path = rest.partition("/")
    directory = next(mount.directory for mount in claim_mounts(server) if mount.claim == claim)
    return f"{directory}/{path}" if path else directory


def _split(uri: str) -> tuple[str, str]:
    scheme, _, rest = uri.partition("://")
    return scheme, rest
