"""How shards are shared among relays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.relay.core.shares import fair_share


@pytest.mark.requirement("RELAY-03")
@given(shards=st.integers(0, 100), relays=st.integers(1, 150))
def test_shares_add_up_and_differ_by_one_at_most(shards: int, relays: int) -> None:
    shares = [fair_share(shards, relays, earlier) for earlier in range(relays)]
    assert sum(shares) == shards
    assert max(shares) - min(shares) <= 1


@given(shards=st.integers(0, 100), relays=st.integers(1, 150))
def test_a_newcomer_moves_only_what_it_gets(shards: int, relays: int) -> None:
    before = [fair_share(shards, relays, earlier) for earlier in range(relays)]
    *after, newcomer = (fair_share(shards, relays + 1, earlier) for earlier in range(relays + 1))
    given_up = [old - new for old, new in zip(before, after, strict=True)]
    assert min(given_up) >= 0
    assert sum(given_up) == newcomer


@pytest.mark.parametrize(("relays", "earlier"), [(0, 0), (2, 2), (1, -1)])
def test_impossible_numbers_are_an_error(relays: int, earlier: int) -> None:
    with pytest.raises(ValueError, match="cannot have joined"):
        fair_share(64, relays, earlier)
