"""Reading Secret entries by name. Secrets are never listed nor watched: the operator sees only those that a resource names."""

from __future__ import annotations

import base64
import binascii

from specserver.api.v1alpha1 import SecretKeyRef
from specserver.cluster.client import Body, Cluster
from specserver.cluster.errors import Conflict, NotFound


async def read_entry(cluster: Cluster, namespace: str, ref: SecretKeyRef) -> str | None:
    """The entry's value, or None where the Secret or the entry is not there or holds no text."""
    try:
        secret = await cluster.get("Secret", namespace, ref.name)
    except NotFound:
        return None
    return decode_entry(secret, ref.key)


async def create_if_absent(cluster: Cluster, secret: Body) -> bool:
    """Creates the Secret; False where one of its name is there already, which is left as it is."""
    try:
        await cluster.create(secret)
    except Conflict:
        return False
    return True


def decode_entry(secret: Body, key: str) -> str | None:
    """The value of an entry, or None where it is not there or holds no text."""
    encoded = (secret.get("data") or {}).get(key)
    if not encoded:
        return None
    try:
        return base64.b64decode(encoded, validate=True).decode().strip() or None
    except (binascii.Error, UnicodeDecodeError):
        return None
