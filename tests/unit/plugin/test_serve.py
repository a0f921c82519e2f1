"""Keys: out of the environment, into SGLang's options, never into a log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from specserver.plugin.serve import mask_in_logs, take_keys


def test_takes_keys_out_of_the_environment() -> None:
    environment = {"SPECSERVER_ADMIN_KEY": "a", "SPECSERVER_API_KEY": "b", "PATH": "/bin"}
    assert take_keys(environment) == {"--admin-api-key": "a", "--api-key": "b"}
    assert environment == {"PATH": "/bin"}


@pytest.mark.parametrize("environment", [{}, {"SPECSERVER_ADMIN_KEY": "", "SPECSERVER_API_KEY": ""}], ids=["none", "empty"])
def test_no_key_is_no_option(environment: dict[str, str]) -> None:
    assert take_keys(environment) == {}


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
