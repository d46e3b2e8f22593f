"""Words for events, and the keys that queues are bound by."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tenure.contract.ids import TenantId
from tenure.contract.states import AttemptState, EntityType, NodeState, TaskState
from tenure.contract.subscriptions import (
    Audience,
    SubscriptionRequest,
    binding_keys,
    whole_streams,
    words_of,
)
from tenure.contract.topology import event_routing_key, matches, subscription_queue

WORD = st.sampled_from(["a", "b", "cc"])
KEY = st.lists(WORD, min_size=1, max_size=5)
PATTERN = st.lists(st.sampled_from(["a", "b", "cc", "*", "#"]), min_size=1, max_size=5)


def by_definition(pattern: list[str], words: list[str]) -> bool:
    """As the broker's documentation says it, by recursion."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(by_definition(pattern[1:], words[n:]) for n in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and by_definition(pattern[1:], words[1:])


@given(PATTERN, KEY)
def test_a_key_matches_as_a_topic_exchange_defines_it(pattern: list[str], key: list[str]) -> None:
    assert matches(".".join(pattern), ".".join(key)) == by_definition(pattern, key)


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("acme.task.delivered", "acme.task.delivered", True),
        ("acme.task.*", "acme.task.failed", True),
        ("acme.task.*", "other.task.failed", False),
        ("*.*.*", "acme.node.gone", True),
        ("#", "acme.node.gone", True),
        ("#.gone", "acme.node.gone", True),
        ("acme.#.gone", "acme.gone", True),
        ("acme.*", "acme.task.failed", False),
        ("acme.task", "acme.task.failed", False),
    ],
)
def test_a_star_is_one_word_and_a_hash_any_number(pattern: str, key: str, expected: bool) -> None:
    assert matches(pattern, key) is expected


@given(
    st.lists(
        st.sampled_from(["all", *EntityType, "task.delivered", "node.gone", "attempt.failed"]),
        min_size=1,
        unique=True,
    ),
    st.none() | st.just("acme"),
)
def test_words_become_keys_and_come_back(events: list[str], tenant: str | None) -> None:
    keys = binding_keys(tenant, events)
    assert words_of(keys) == tuple(events)
    for word in events:
        entity = EntityType.TASK if word == "all" else EntityType(word.partition(".")[0])
        state = word.partition(".")[2] or "anything"
        key = event_routing_key(TenantId("acme"), entity, state)
        assert any(matches(pattern, key) for pattern in keys)
        stranger = event_routing_key(TenantId("stranger"), entity, state)
        assert any(matches(pattern, stranger) for pattern in keys) is (tenant is None)


def test_streams_are_whole_when_no_state_is_left_out() -> None:
    assert whole_streams(["all"]) == tuple(EntityType)
    assert whole_streams(["task", "attempt.failed"]) == (EntityType.TASK,)
    assert whole_streams([f"node.{state.value}" for state in NodeState]) == (EntityType.NODE,)
    assert whole_streams([f"task.{state.value}" for state in list(TaskState)[1:]]) == ()
    assert whole_streams([f"attempt.{state.value}" for state in list(AttemptState)[1:]]) == ()


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ((), "at least 1 item"),
        (("taks",), "begin with task, attempt, node"),
        (("task.done",), "states of task are open, held, delivered"),
        (("#",), "say `all`"),
        (("task.*",), "states of task"),
        (("task.delivered.x",), "states of task"),
    ],
)
def test_words_that_name_no_events_are_refused(events: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        SubscriptionRequest(name="x", events=events)


def test_one_tenant_and_all_tenants_exclude_each_other() -> None:
    with pytest.raises(ValidationError, match="not both"):
        Audience(name="x", tenant="acme", all_tenants=True)


def test_queues_of_tenants_and_of_all_never_meet() -> None:
    queues = {
        subscription_queue(None, "x"),
        subscription_queue("x", "x"),
        subscription_queue("default", "x"),
    }
    assert len(queues) == 3
