"""Server-side apply that stays silent while nothing differs, and notices when somebody changed a field of ours.

An apply that changes nothing is still a request, and "steady state writes nothing" is a promise. So we remember, for each
object, the hash of what we applied and the set of fields that the API server then counted as ours (`managedFields`). Whoever
changes one of those fields takes it from us, so an equal set means no drift. Rejected: comparing the desired object with the
live one, which trips over defaults and over quantities that the API server spells otherwise (`1000m`, `1`).

After a restart nothing is remembered. Then the live object tells whether it is as an apply would make it
(`managed_fields.py`): five applies for each of a thousand servers are half a minute of an API server's time.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from specserver.cluster.client import Body, Cluster
from specserver.cluster.managed_fields import is_in_place

_Key = tuple[str, str, str, str]


class Applier:
    """Applies objects and remembers what it applied."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._applied: dict[_Key, tuple[str, str, str]] = {}

    async def apply(self, desired: Body, live: Body | None, *, field_manager: str) -> Body | None:
        """Applies `desired` where it differs from what we last applied, or where `live` shows that a field was taken from us.

        Returns the object as the API server now has it, or None where nothing had to be done.
        """
        metadata = desired["metadata"]
        key = (desired["kind"], metadata["namespace"], metadata["name"], field_manager)
        wanted = _digest(desired)
        if live is not None:
            present = (live["metadata"]["uid"], wanted, _owned_fields(live, field_manager))
            if key not in self._applied and is_in_place(desired, live, field_manager):
                self._applied[key] = present
            if self._applied.get(key) == present:
                return None
        answer = await self._cluster.apply(desired, field_manager=field_manager)
        self._applied[key] = (answer["metadata"]["uid"], wanted, _owned_fields(answer, field_manager))
        return answer

    def forget(self, namespace: str, prefix: str) -> None:
        """Drops what is remembered of a server that is gone."""
        for key in [key for key in self._applied if key[1] == namespace and key[2] in (prefix, f"{prefix}-policy")]:
            del self._applied[key]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _owned_fields(body: Body, field_manager: str) -> str:
    """Digest of the fields that an apply of ours owns in the object."""
    return _digest(
        [
            entry.get("fieldsV1")
            for entry in body["metadata"].get("managedFields", [])
            if entry.get("manager") == field_manager and entry.get("operation") == "Apply"
        ]
    )
