"""What is logged of connections that nobody waits for any more."""

import asyncio
import gc
import logging

import pytest

from tenure.settings.given_up import GivenUp, expect_given_up


@pytest.fixture(autouse=True)
def _expect_given_up() -> object:
    gc.collect()  # what earlier tests have forgotten is told before
    expect_given_up()
    yield
    logger = logging.getLogger("asyncio")
    for one in [one for one in logger.filters if isinstance(one, GivenUp)]:
        logger.removeFilter(one)


async def forgotten(error: BaseException) -> None:
    """A future that fails while nobody waits for it."""
    future = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    del future
    gc.collect()


async def test_a_forgotten_connection_is_told_in_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await forgotten(ConnectionError("it went"))
    (told,) = caplog.records
    assert told.levelname == "WARNING"
    assert told.getMessage() == (
        "a connection that was given up failed later: ConnectionError: it went"
    )
    assert told.exc_info is None


async def test_any_other_forgotten_failure_stays_an_error(caplog: pytest.LogCaptureFixture) -> None:
    await forgotten(ValueError("ours"))
    (told,) = caplog.records
    assert told.levelname == "ERROR"
    assert told.exc_info is not None


def test_other_errors_of_connections_stay_what_they_are(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise OSError("disk")
    except OSError:
        logging.getLogger("asyncio").exception("Exception in callback")
    assert [one.levelname for one in caplog.records] == ["ERROR"]


def test_asked_twice_it_is_there_once() -> None:
    expect_given_up(KeyError)
    assert sum(isinstance(one, GivenUp) for one in logging.getLogger("asyncio").filters) == 1
