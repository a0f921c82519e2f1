"""Keys: out of the environment, into SGLang's options, never into a log."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator

import pytest

from specserver.plugin.serve import build_options, mask_in_logs, take_keys


def test_takes_keys_out_of_the_environment() -> None:
    environment = {"SPECSERVER_ADMIN_KEY": "a", "SPECSERVER_API_KEY": "b", "PATH": "/bin"}
    assert take_keys(environment) == {"--admin-api-key": "a", "--api-key": "b"}
    assert environment == {"PATH": "/bin"}


@pytest.mark.parametrize("environment", [{}, {"SPECSERVER_ADMIN_KEY": "", "SPECSERVER_API_KEY": ""}], ids=["none", "empty"])
def test_no_key_is_no_option(environment: dict[str, str]) -> None:
    assert take_keys(environment) == {}


def test_a_key_that_begins_with_a_dash_is_still_a_value() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--api-key")
    assert parser.parse_args(build_options({"--api-key": "-Qj8"})).api_key == "-Qj8"


@pytest.fixture
def _factory() -> Iterator[None]:
    before = logging.getLogRecordFactory()
    yield
    logging.setLogRecordFactory(before)


@pytest.mark.usefixtures("_factory")
def test_masks_keys_in_every_log_line(caplog: pytest.LogCaptureFixture) -> None:
    mask_in_logs(["s3cret"])
    logger = logging.getLogger("some.library")
    logger.warning("args=%s", {"admin_api_key": "s3cret"})
    logger.warning("command: --admin-api-key s3cret")
    logger.warning("rate %d%%", 5)
    assert caplog.messages == ["args={'admin_api_key': '********'}", "command: --admin-api-key ********", "rate 5%"]
