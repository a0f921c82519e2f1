"""Starting, finding and ending processes without ever trusting a process number alone.

Children of a test run must not outlive it, even one killed with -9: they are started with a parent-death signal. The
kernel ties that signal to the *thread* that forked, so every child is forked by one thread that lives as long as the
interpreter. (Rejected: pid files with a clean-up on the next run — a number says nothing about who owns it now.)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from tests.localcluster.errors import ClusterError

_DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_forker_lock = threading.Lock()
_forker: dict[int, ThreadPoolExecutor] = {}


def start_child(argv: Sequence[str | Path], log: Path, *, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a process that dies with this one; its output goes to `log`."""
    with _forker_lock:  # by pid: a forked copy of this interpreter has no forking thread yet
        forker = _forker.setdefault(os.getpid(), ThreadPoolExecutor(1, thread_name_prefix="localcluster-fork"))

    def fork() -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                [*_DIES_WITH_US, *map(str, argv)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(env) if env is not None else None,
                start_new_session=True,  # a Ctrl-C at the terminal is ours to handle, in order
            )

    return forker.submit(fork).result()


def restart_child(ended: subprocess.Popen[bytes], log: Path) -> subprocess.Popen[bytes]:
    """Start anew, in our own environment, what `start_child` had started."""
    assert isinstance(ended.args, list)
    return start_child(ended.args[len(_DIES_WITH_US) :], log)


def stop_children(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """SIGKILL at once: their data is thrown away with them, and an orderly end would cost every test seconds."""
    for child in children:
        child.kill()
    for child in children:
        child.wait()


def interrupt_once() -> None:
    """From now on whatever asks this program to end does so as Ctrl-C does, by KeyboardInterrupt, and only the first time.

    kill, or a terminal that was closed, must take back what was begun, too; and Ctrl-C itself needs a handler, because a shell
    starts what it runs in the background with that signal ignored. A second one would cut the clean-up short, or come so late
    that Python has put the default back, and turn the exit status into a signal's.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in _ENDING:
        signal.signal(number, interrupt)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """A second Ctrl-C, or one at the very end of a run, comes after the block: what takes something away must get through.

    The block's own children are spared as well: a terminal sends its Ctrl-C to all of them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    came: list[int] = []
    handlers = {number: signal.signal(number, lambda number, _frame: came.append(number)) for number in _ENDING}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now. Held open together, so that they differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def wait_until(
    condition: Callable[[], bool],
    what: str,
    *,
    timeout_seconds: float,
    interval_seconds: float = 0.05,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Wait for a condition. `check` runs at each turn and raises when waiting has become pointless."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        check()
        if time.monotonic() > deadline:
            raise ClusterError(f"waited {timeout_seconds:.0f} s in vain: {what}")
        time.sleep(interval_seconds)


def log_tail(log: Path, lines: int = 15) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return "(no log)"


@contextlib.contextmanager
def file_lock(path: Path, *, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """An exclusive lock between processes; the kernel drops it when its holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class ProcessIdentity:
    """A process as the kernel knows it: the number alone may be somebody else's by now."""

    pid: int
    start_ticks: int

    def alive(self) -> bool:
        return read_identity(self.pid) == self

    def kill(self) -> None:
        """SIGKILL through a pid file descriptor: between the check and the signal the number can't change hands."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.alive():
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        except ProcessLookupError:
            pass
        finally:
            os.close(handle)


def read_identity(pid: int) -> ProcessIdentity | None:
    """None when there is no such process, or it is a zombie that only waits to be reaped."""
    fields = _stat_fields(pid)
    return None if fields is None or fields[0] == "Z" else ProcessIdentity(pid, int(fields[19]))


def read_parent(pid: int) -> int | None:
    fields = _stat_fields(pid)
    return None if fields is None else int(fields[1])


def _stat_fields(pid: int) -> list[str] | None:
    """/proc/PID/stat after the command name, which may hold spaces and parentheses: state, ppid, …"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def find_processes(argv_end: Sequence[str]) -> list[ProcessIdentity]:
    """The processes of this machine whose command line ends with exactly these arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if argv[-len(argv_end) :] == list(argv_end):
            identity = read_identity(int(entry.name))
            if identity is not None:
                found.append(identity)
    return found
