"""What a receiver makes of a guarded request, case by case; and what crosses the wire."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.executor.core.receiving import (
    Entry,
    Presented,
    State,
    Verdict,
    claims,
    judge,
    raises_fence,
)
from tenure.executor.guards.http_wire import (
    PROBLEMS,
    HeaderFault,
    fencing_headers,
    presented,
    problem_body,
    problem_code,
    quoted,
)
from tests.support.leases import attempt

NOW = 1_000
ASKED = Presented("task", token=5, until=NOW + 1, scope="", key="k", fingerprint="f")


def verdict(
    asked: Presented = ASKED,
    *,
    seen: int | None = 5,
    entry: Entry | None = None,
    repeat: bool = False,
) -> Verdict:
    return judge(asked, seen_token=seen, entry=entry, now=NOW, repeat_abandoned=repeat)


def entry(state: State, *, alive: bool = True, kept: bool = True, fingerprint: str = "f") -> Entry:
    return Entry(state, fingerprint, NOW + 1 if alive else NOW, kept)


def test_the_first_request_of_a_key_starts() -> None:
    assert verdict() is Verdict.START
    assert verdict(seen=None) is Verdict.START
    assert verdict(seen=4) is Verdict.START


@pytest.mark.parametrize(
    ("stored", "repeat", "expected"),
    [
        (entry(State.RUNNING), False, Verdict.RUNNING),
        (entry(State.RUNNING), True, Verdict.RUNNING),
        (entry(State.RUNNING, alive=False), False, Verdict.UNKNOWN),
        (entry(State.RUNNING, alive=False), True, Verdict.AGAIN),
        (entry(State.ACTED), True, Verdict.RUNNING),
        (entry(State.ACTED, alive=False), True, Verdict.NO_ANSWER),
        (entry(State.DONE), False, Verdict.REPLAY),
        (entry(State.DONE, alive=False), True, Verdict.REPLAY),
        (entry(State.DONE, kept=False), False, Verdict.NO_ANSWER),
        (entry(State.DONE, fingerprint="another"), False, Verdict.CONFLICT),
        (entry(State.RUNNING, fingerprint="another"), False, Verdict.CONFLICT),
    ],
)
def test_a_repeated_key_is_judged_by_how_far_the_first_came(
    stored: Entry, repeat: bool, expected: Verdict
) -> None:
    assert verdict(entry=stored, repeat=repeat) is expected


@pytest.mark.requirement("LEASE-10")
def test_who_may_act_no_longer_gets_nothing_whatever_is_stored() -> None:
    entries = [None, *(entry(state, alive=alive) for state, alive in product(State, (True, False)))]
    for stored, repeat in product(entries, (True, False)):
        assert verdict(seen=6, entry=stored, repeat=repeat) is Verdict.STALE_TOKEN
        late = replace(ASKED, until=NOW)
        assert verdict(late, entry=stored, repeat=repeat) is Verdict.AUTHORITY_OVER


@pytest.mark.requirement("LEASE-10")
def test_a_refused_token_never_raises_the_fence_and_any_other_does() -> None:
    refused = {Verdict.STALE_TOKEN, Verdict.AUTHORITY_OVER}
    assert {each for each in Verdict if not raises_fence(each)} == refused
    assert {each for each in Verdict if claims(each)} == {Verdict.START, Verdict.AGAIN}


def test_a_request_without_a_key_only_raises_the_fence() -> None:
    asked = replace(ASKED, key="", fingerprint=None)
    assert verdict(asked, seen=4) is Verdict.FENCED
    assert verdict(asked, seen=6) is Verdict.STALE_TOKEN


def raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def test_what_a_sender_writes_a_receiver_reads() -> None:
    context = attempt(generation=2, tolerance_seconds=0.5)
    headers = raw(fencing_headers(context, key='a "quoted\\ key'))
    asked = presented(headers, scope="me", fingerprint="f")
    assert (asked.scope, asked.key, asked.fingerprint) == (
        "me",
        'a "quoted\\ key',
        f"f {context.task_id}",
    )
    assert (asked.resource, asked.token) == (context.task_id, context.fencing_token)
    until = context.expires_at.timestamp() + 0.5
    assert asked.until == pytest.approx(until * 1_000_000, abs=10)


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=255))
def test_every_printable_key_survives_the_wire(key: str) -> None:
    headers = raw(fencing_headers(attempt(), key=key))
    assert presented(headers, scope="", fingerprint="f").key == key


@pytest.mark.parametrize("key", ["", "x" * 256, "ü", "a\nb"])
def test_a_key_that_no_header_carries_is_refused_at_once(key: str) -> None:
    with pytest.raises(ValueError, match="printable"):
        quoted(key)


@pytest.mark.parametrize(
    ("header", "value", "code"),
    [
        ("Idempotency-Key", None, "idempotency_key_missing"),
        ("Idempotency-Key", "bare", "header_invalid"),
        ("Idempotency-Key", '""', "header_invalid"),
        ("Idempotency-Key", '"a"b"', "header_invalid"),
        ("Idempotency-Key", '"' + "x" * 256 + '"', "header_invalid"),
        ("Fencing-Token", None, "fencing_token_missing"),
        ("Fencing-Token", "-1", "header_invalid"),
        ("Fencing-Token", "٣", "header_invalid"),
        ("Fencing-Token", str(2**53), "header_invalid"),
        ("Fencing-Resource", None, "fencing_token_missing"),
        ("Fencing-Resource", "task", "header_invalid"),
        ("Fencing-Expires", None, "fencing_token_missing"),
        ("Fencing-Expires", "2026-01-01T00:00:00", "header_invalid"),
        ("Fencing-Expires", "soon", "header_invalid"),
        ("Fencing-Tolerance", "nan", "header_invalid"),
        ("Fencing-Tolerance", "-1", "header_invalid"),
        ("Fencing-Tolerance", "1e9", "header_invalid"),
    ],
)
def test_a_header_that_is_missing_or_makes_no_sense_is_named(
    header: str, value: str | None, code: str
) -> None:
    headers = fencing_headers(attempt(), key="k")
    headers.pop(header)
    if value is not None:
        headers[header] = value
    with pytest.raises(HeaderFault) as caught:
        presented(
            [(name.encode(), each.encode("utf-8")) for name, each in headers.items()],
            scope="",
            fingerprint="f",
        )
    assert caught.value.code == code
    assert header.lower() in str(caught.value)


def test_a_header_that_comes_twice_is_refused() -> None:
    headers = raw(fencing_headers(attempt(), key="k"))
    with pytest.raises(HeaderFault, match="more than once"):
        presented([*headers, headers[0]], scope="", fingerprint="f")


def test_every_problem_is_known_again_by_its_sender() -> None:
    for code in PROBLEMS:
        status, body = problem_body(code, "detail", seen_token=1)
        assert status == PROBLEMS[code].status
        known, members = problem_code("application/problem+json; charset=utf-8", body)
        assert (known, members["seen_token"]) == (code, 1)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b'{"type": "urn:tenure:stale_token", "code": "stale_token"}'),
        ("application/problem+json", b"no json"),
        ("application/problem+json", b"[]"),
        ("application/problem+json", b'{"type": "about:blank", "code": "stale_token"}'),
        ("application/problem+json", b'{"type": "urn:tenure:of_others", "code": "of_others"}'),
    ],
)
def test_an_answer_of_the_applications_is_no_refusal(kind: str, body: bytes) -> None:
    assert problem_code(kind, body)[0] is None
