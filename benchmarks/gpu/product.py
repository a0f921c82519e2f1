"""Our plugin's control API, as far as the benchmarks turn it: one arm after another in the same server, without a restart.

A step count is set the way a user could, not by a back door: by hand (`force`), or by a policy, strategy Table with one row
(`fixed`). The bounds are set so wide that they never decide.
"""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.servers import Running

LADDER = (0, 1, 2, 3)
PATH = "/specserver/v1"
UNBOUNDED = 1_000_000_000
FORCE_SECONDS = 120.0


class Product:
    def __init__(self, running: Running, ladder: tuple[int, ...] = LADDER) -> None:
        self._running, self._ladder = running, ladder

    def state(self) -> dict[str, Any]:
        """The first rank's state."""
        return self.ranks()[0]

    def ranks(self) -> list[dict[str, Any]]:
        """Every rank's state, as of the same scheduler turn."""
        ranks: list[dict[str, Any]] = self._running.call("GET", f"{PATH}/state")["ranks"]
        return ranks

    def profile(self) -> dict[str, Any]:
        """Step costs that our rule has measured, in the form that a server can start from."""
        document: dict[str, Any] = self._running.call("GET", f"{PATH}/profile")
        return document

    def measured(self, **changes: object) -> None:
        """Our rule decides, also where a stage that failed has left a step count forced."""
        self._put(mode="Auto", strategy="Measured", **changes)
        self.release()

    def force(self, steps: int) -> None:
        """So many steps from this moment on. The rule goes on beneath: `release` finds it where it would stand without. It learns
        what such rounds cost, and nothing of what drafts are worth."""
        self._running.call("POST", f"{PATH}/force", {"steps": steps, "ttlSeconds": FORCE_SECONDS, "costOnly": True})

    def release(self) -> None:
        self._running.call("DELETE", f"{PATH}/force")

    def fixed(self, steps: int) -> None:
        """Always so many steps; 0 is plain decode with the draft model kept ready."""
        self._put(mode="Auto", strategy="Table", table=[{"running": 0, "steps": steps}])

    def never(self) -> None:
        """Plain decode for good: no work for the draft model."""
        self._put(mode="Never", strategy="Threshold")

    def _put(self, **fields: object) -> None:
        self._running.policy_revision += 1
        document = {
            "revision": self._running.policy_revision, "steps": list(self._ladder), "disableAbove": UNBOUNDED,
            "enableBelow": UNBOUNDED - 1, "minDwellSeconds": 0.25, **fields,
        }  # fmt: skip
        self._running.call("PUT", f"{PATH}/policy", document)
