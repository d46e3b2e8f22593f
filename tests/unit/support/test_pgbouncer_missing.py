"""What goes through a pooler never passes for lack of one."""

import pytest

from tests.support import pgbouncer


def test_a_missing_pooler_fails_the_tests_that_need_it_and_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr(pgbouncer, "_SYSTEM", "/nowhere/pgbouncer")
    with pytest.raises(pgbouncer.PgbouncerMissing, match="run deploy/install-pgbouncer"):
        pgbouncer.program()
