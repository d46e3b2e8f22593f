"""Effects that no guard makes: refused without authority, known by an id, and kept."""

import uuid
from datetime import UTC, datetime

import pytest

from tenure.contract.ids import AttemptId, FencingToken, TaskId
from tenure.executor import AuthorityOver, Context
from tenure.executor.lease import Lease
from tenure.executor.side_effects import EffectState, effect_id

TASK = TaskId(str(uuid.uuid4()))


class Clock:
    """Set by hand, in microseconds."""

    now = 0

    def __call__(self) -> int:
        return self.now


def attempt(clock: Clock, number: int = 1) -> Context[None]:
    """An attempt of the task with ten seconds of authority."""
    lease = Lease(
        task_id=TASK,
        attempt_id=AttemptId(str(uuid.uuid4())),
        fencing_token=FencingToken(number),
        clock=clock,
        tolerance_seconds=0.0,
        renewal_interval_seconds=3.0,
        sent_at=clock.now,
        remaining_seconds=10.0,
        expires_at=datetime.now(UTC),
    )
    return Context(lease=lease, task_type="mail", resources=None)


@pytest.mark.requirement("LEASE-09")
async def test_an_effect_does_not_begin_without_authority() -> None:
    clock = Clock()
    context = attempt(clock)
    effect = context.side_effect("mail")
    clock.now = 10_000_000
    with pytest.raises(AuthorityOver), effect:
        pytest.fail("it began")
    with pytest.raises(AuthorityOver):
        async with context.side_effect("mail"):
            pytest.fail("it began")
    assert context.side_effects == ()


async def test_what_was_begun_is_kept_with_how_far_it_came() -> None:
    context = attempt(Clock())
    with context.side_effect("one"):
        assert [each.state for each in context.side_effects] == [EffectState.BEGUN]

    async def fails() -> None:
        async with context.side_effect("two", key="a") as effect:
            assert effect.fencing_token == 1
            raise LookupError

    with pytest.raises(LookupError):
        await fails()
    assert [(each.name, each.key, each.state) for each in context.side_effects] == [
        ("one", "", EffectState.DONE),
        ("two", "a", EffectState.FAILED),
    ]


def test_an_effect_has_one_id_in_every_attempt_and_another_under_another_name_or_key() -> None:
    first, second = attempt(Clock()), attempt(Clock(), 2)
    assert first.side_effect("mail", key="a").id == second.side_effect("mail", key="a").id
    others = {
        effect_id(TASK, "mail", "a"),
        effect_id(TASK, "mail", "b"),
        effect_id(TASK, "mail"),
        effect_id(TASK, "mail a"),
        effect_id(TASK, "mai", "l a"),
        effect_id(TaskId(str(uuid.uuid4())), "mail", "a"),
    }
    assert len(others) == 6


@pytest.mark.parametrize(("name", "key"), [("", ""), ("n" * 201, ""), ("n", "k" * 201)])
def test_an_effect_without_a_usable_name_is_refused(name: str, key: str) -> None:
    with pytest.raises(ValueError, match="1 to 200 characters"):
        attempt(Clock()).side_effect(name, key=key)
