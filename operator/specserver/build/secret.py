"""Keys of the engine: where they are read from, and the Secret with those that the operator makes itself."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from pydantic import ValidationError

from specserver.api import labels
from specserver.api.v1alpha1 import SecretKeyRef, SpeculativeServer
from specserver.build.metadata import KubernetesObject, build_metadata


@dataclass(frozen=True)
class NeededSecret:
    """A Secret entry that a pod can't start without. `field` is the resource's field that names it."""

    field: str
    ref: SecretKeyRef


def admin_key_ref(server: SpeculativeServer) -> SecretKeyRef:
    """Entry with the engine's admin key: the user's, or the one that the operator makes."""
    return server.spec.engine.admin_key_secret_ref or _generated(server, labels.ADMIN_KEY_ENTRY)


def api_key_ref(server: SpeculativeServer) -> SecretKeyRef:
    """Entry with the key that clients send: the user's, or the one that the operator makes."""
    return server.spec.engine.api_key_secret_ref or _generated(server, labels.API_KEY_ENTRY)


def needs_keys_secret(server: SpeculativeServer) -> bool:
    """Whether the operator has to make a key: the user names none for at least one of the two."""
    engine = server.spec.engine
    return engine.admin_key_secret_ref is None or engine.api_key_secret_ref is None


def build_keys_secret(server: SpeculativeServer, *, admin_key: str, api_key: str) -> KubernetesObject:
    """The Secret `<name>-keys`. Keys are given, not made: this module has no randomness, and a live key must be kept."""
    keys = {labels.ADMIN_KEY_ENTRY: admin_key, labels.API_KEY_ENTRY: api_key}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": build_metadata(server, labels.keys_secret_name(server.name)),
        "type": "Opaque",
        "data": {entry: base64.b64encode(key.encode()).decode() for entry, key in keys.items()},
    }


def needed_secret_refs(server: SpeculativeServer) -> tuple[NeededSecret, ...]:
    """Entries that the user names and that must exist before a pod can start, to be able to say which one is missing.

    Entries marked optional in `engine.env` are not needed; the operator's own Secret is not named by the user.
    """
    engine, model = server.spec.engine, server.spec.model
    named = [
        ("spec.engine.adminKeySecretRef", engine.admin_key_secret_ref),
        ("spec.engine.apiKeySecretRef", engine.api_key_secret_ref),
        ("spec.model.tokenSecretRef", model.token_secret_ref),
    ]
    for variable in engine.env:
        source = (variable.value_from or {}).get("secretKeyRef")
        if isinstance(source, dict) and not source.get("optional"):
            named.append((f"spec.engine.env[{variable.name}]", parse_secret_ref(source)))
    return tuple(NeededSecret(field, ref) for field, ref in named if ref is not None)


def parse_secret_ref(source: object) -> SecretKeyRef | None:
    """The `secretKeyRef` of a container's variable, which the resource's schema lets through as it is; None where it is none."""
    try:
        return SecretKeyRef(name=source.get("name", ""), key=source.get("key", "")) if isinstance(source, dict) else None
    except ValidationError:
        return None


def _generated(server: SpeculativeServer, entry: str) -> SecretKeyRef:
    return SecretKeyRef(name=labels.keys_secret_name(server.name), key=entry)
