"""``tenure limit``: what is no limit is told before anybody is asked."""

import pytest

from tenure.cli.exits import Exit
from tenure.cli.main import run


@pytest.mark.requirement("FLOW-01")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("type", "t"), "needs max_running"),
        (("type", "t", "--max-running", "0"), "max_running"),
        (("type", "t", "--rate", "many"), "no rate"),
        (("type", "t", "--rate", "0/s"), "starts"),
        (("type", "t", "--max-running", "1", "--burst", "2"), "--burst belongs to --rate"),
        (("planet", "t", "--max-running", "1"), "planet"),
    ],
)
def test_what_is_no_limit_is_said_and_nobody_is_asked(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert run(["limit", "set", *words]) == Exit.USAGE
    assert said in capsys.readouterr().err
