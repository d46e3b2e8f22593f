"""What the driver raises becomes an error that the relay waits out."""

import asyncpg
import pytest

from tenure.relay.errors import LogNotMigrated, LogRefused, LogUnavailable
from tenure.relay.log import _translated


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ConnectionRefusedError("refused"), LogUnavailable),
        (TimeoutError(), LogUnavailable),
        (asyncpg.InterfaceError("the connection is closed"), LogUnavailable),
        (asyncpg.InternalClientError("another operation (2) is in progress"), LogUnavailable),
        (asyncpg.AdminShutdownError("terminating connection"), LogUnavailable),
        (asyncpg.QueryCanceledError("statement timeout"), LogUnavailable),
        (asyncpg.InvalidPasswordError("no"), LogRefused),
        (asyncpg.UndefinedFunctionError("tenure.relay_claim"), LogNotMigrated),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_the_driver_raises_is_waited_out(
    raised: Exception, expected: type[LogUnavailable]
) -> None:
    with pytest.raises(LogUnavailable) as caught, _translated():
        raise raised
    assert type(caught.value) is expected
    assert caught.value.__cause__ is raised
