"""Server-side apply that stays silent while nothing differs, and notices when somebody changed a field of ours.

An apply that changes nothing is still a request, and "steady state writes nothing" is a promise. So we remember, for each
object, the hash of what we applied and the set of fields that the API server then counted as ours (`managedFields`). Whoever
changes one of those fields takes it from us, so an equal set means no drift. Rejected: comparing the desired object with the
live one, which trips over defaults and over quantities that the API server spells otherwise (`1000m`, `1`).

What somebody else undid is done again, and kept as a `Drift` for whoever tells of it: a repair in silence lets two controllers
fight for ever.

After a restart nothing is remembered. Then the live object tells whether it is as an apply would make it
(`managed_fields.py`): five applies for each of a thousand servers are half a minute of an API server's time.
"""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from specserver.api import labels
from specserver.cluster.client import Body, Cluster
from specserver.cluster.managed_fields import is_in_place
from specserver.core.events import Drift

_Key = tuple[str, str, str, str]


class Applier:
    """Applies objects and remembers what it applied."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._applied: dict[_Key, tuple[str, tuple[str, str] | None]] = {}
        """The digest of what was applied, and what came of it: the object's UID, and the digest of our fields in it."""
        self._drifts: dict[tuple[str, str], list[Drift]] = {}

    async def apply(self, desired: Body, live: Body | None, *, field_manager: str) -> Body | None:
        """Applies `desired` where it differs from what we last applied, or where `live` shows that a field was taken from us.

        Returns the object as the API server now has it, or None where nothing had to be done.
        """
        metadata = desired["metadata"]
        key = (desired["kind"], metadata["namespace"], metadata["name"], field_manager)
        wanted = _digest(desired)
        found = None if live is None else (live["metadata"]["uid"], _owned_fields(live, field_manager))
        if live is not None and key not in self._applied and is_in_place(desired, live, field_manager):
            self._applied[key] = (wanted, found)
        earlier = self._applied.get(key)
        if live is not None and earlier == (wanted, found):
            return None
        answer = await self._cluster.apply(desired, field_manager=field_manager)
        if earlier is not None and earlier[1] != found:
            drift = Drift(desired["kind"], metadata["name"], "" if live is None else _last_writer(live))
            self._drifts.setdefault((metadata["namespace"], metadata["name"]), []).append(drift)
        self._applied[key] = (wanted, (answer["metadata"]["uid"], _owned_fields(answer, field_manager)))
        return answer

    def take_drifts(self, namespace: str, server: str) -> list[Drift]:
        """What was put right since the last time among the objects of a server: an object with two field managers once."""
        found = [drift for name in _object_names(server) for drift in self._drifts.pop((namespace, name), [])]
        return list(dict.fromkeys(found))

    def forget(self, namespace: str, server: str) -> None:
        """Drops what is remembered of a server that is gone."""
        self.take_drifts(namespace, server)
        for key in [key for key in self._applied if key[1] == namespace and key[2] in _object_names(server)]:
            del self._applied[key]


def _object_names(server: str) -> tuple[str, ...]:
    return server, labels.policy_config_map_name(server)


def _last_writer(live: Body) -> str:
    """Whoever else wrote the object last, its status apart."""
    others = [
        entry
        for entry in live["metadata"].get("managedFields", [])
        if entry.get("manager") not in labels.MANAGERS and entry.get("subresource") != "status"
    ]
    return str(max(others, key=lambda entry: entry.get("time") or "").get("manager", "")) if others else "somebody"


def _digest(value: Any) -> str:
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _owned_fields(body: Body, field_manager: str) -> str:
    """Digest of the fields that an apply of ours owns in the object."""
    return _digest(
        [
            entry.get("fieldsV1")
            for entry in body["metadata"].get("managedFields", [])
            if entry.get("manager") == field_manager and entry.get("operation") == "Apply"
        ]
    )
