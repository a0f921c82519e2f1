"""A process number proves nothing: identity is number and start time, and finding is by the exact command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from uuid import uuid4

import pytest

from tests.localcluster.processes import find_processes, free_ports, read_identity, read_parent, wait_until

SLEEP = "import time; time.sleep(600)"
MINE = f"mine-{uuid4()}"
"""Other runs of these tests on this machine have words of their own."""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", SLEEP, MINE]) as process:
        yield process
        process.kill()


def test_found_by_the_end_of_the_command_line_word_by_word(sleeper: subprocess.Popen[bytes]) -> None:
    wait_until(lambda: bool(find_processes([SLEEP, MINE])), "it is found", timeout_seconds=10)
    assert [one.pid for one in find_processes([SLEEP, MINE])] == [sleeper.pid]
    assert find_processes([SLEEP, MINE[:-1]]) == []
    assert find_processes([SLEEP, MINE, "too"]) == []


def test_a_number_that_was_given_to_another_process_is_not_killed(sleeper: subprocess.Popen[bytes]) -> None:
    identity = read_identity(sleeper.pid)
    assert identity is not None
    stale = replace(identity, start_ticks=identity.start_ticks - 1)
    assert not stale.alive()
    stale.kill()
    assert sleeper.poll() is None
    identity.kill()
    assert sleeper.wait(timeout=10) == -9
    assert not identity.alive()
    identity.kill()  # gone: harmless


def test_a_dead_process_that_nobody_has_waited_for_is_not_alive() -> None:
    process = subprocess.Popen(["true"])
    wait_until(lambda: read_identity(process.pid) is None, "it is a zombie", timeout_seconds=10)
    process.wait()


def test_parent(sleeper: subprocess.Popen[bytes]) -> None:
    assert read_parent(sleeper.pid) == os.getpid()


UNDISTURBED = """
import os, signal, subprocess
from tests.localcluster.processes import undisturbed
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what it runs in the background with that signal ignored
try:
    with undisturbed():
        os.kill(0, signal.SIGINT)  # to the group, as a terminal does
        print(subprocess.run(["sh", "-c", "kill -INT 0; echo the child"], stdout=subprocess.PIPE, text=True).stdout, flush=True)
        print("the end of the block", flush=True)
    print("too far", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_what_cleans_up_is_interrupted_after_it() -> None:
    run = subprocess.run(
        [sys.executable, "-c", UNDISTURBED], capture_output=True, text=True, check=False, start_new_session=True
    )
    assert run.stdout.split("\n") == ["the child", "", "the end of the block", "interrupted", ""], run.stderr


def test_free_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20
