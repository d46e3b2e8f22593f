"""What the library raises where a connection goes under an acknowledgement."""

import asyncio

import pytest
from aiormq.base import FutureStore

from tenure.executor.delivery import LOST, as_lost


async def test_a_bare_exception_of_the_library_is_a_lost_connection() -> None:
    """aiormq ends what waits for a written frame with an Exception of no class of its own."""
    futures = FutureStore(loop=asyncio.get_running_loop())
    waiting = futures.create_future()
    futures.reject_all(None)
    with pytest.raises(LOST), as_lost():
        await waiting


async def test_other_exceptions_pass() -> None:
    with pytest.raises(ValueError, match="ours"), as_lost():
        raise ValueError("ours")
