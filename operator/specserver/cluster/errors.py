"""What can go wrong with the API server, by what the caller should do about it."""

from __future__ import annotations


class ClusterError(Exception):
    """Base of all errors of this package. `message` is the API server's own sentence where it sent one."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.message, self.status = message, status


class NotFound(ClusterError):
    """The object, its namespace or its kind is not there."""


class Conflict(ClusterError):
    """Somebody else changed the object meanwhile: look again."""


class Refused(ClusterError):
    """The API server won't take this object, now or later: invalid, forbidden, over a quota. Tell the user."""


class Unavailable(ClusterError):
    """No answer, or one that says "later". Try again after `retry_after_seconds`."""

    def __init__(self, message: str, *, status: int = 0, retry_after_seconds: float | None = None) -> None:
        super().__init__(message, status=status)
        self.retry_after_seconds = retry_after_seconds
