"""Where things lie: caches outside the clone, state by instance.

Nothing is written into the clone: a clean checkout builds nothing twice, and `git clean` can't pull the floor from
under a running node. An instance is named after the path of its clone, so two clones on one machine are two instances.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
REPOSITORY = PACKAGE.parent.parent


def cache_root() -> Path:
    """Binaries and downloads, shared by all instances of one user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve() / "specserver"


def state_root() -> Path:
    """One directory an instance."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state").resolve() / "specserver"


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def default_instance() -> str:
    """The clone's directory name, readable, and a hash of its whole path, unique."""
    readable = re.sub(r"[^a-z0-9]+", "-", REPOSITORY.name.lower()).strip("-")[:20] or "clone"
    return f"{readable}-{short_hash(str(REPOSITORY))}"


def check_instance(name: str) -> str:
    """The name ends up in file names and cgroup names."""
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", name):
        raise ValueError(f"name {name!r}: use 1 to 40 lower-case letters, digits and dashes, not starting or ending with a dash")
    return name
