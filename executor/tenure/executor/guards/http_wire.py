"""What crosses between a sender and a receiver of guarded HTTP requests: headers and problems.

| Header | Is |
|---|---|
| ``Idempotency-Key`` | a string in quotes (RFC 8941): the effect, the same in every attempt |
| ``Fencing-Token`` | the attempt's token, a decimal number |
| ``Fencing-Resource`` | what the token is compared for, in quotes: the task |
| ``Fencing-Expires`` | the end of the lease on the authority's clock, ISO 8601 with its zone |
| ``Fencing-Tolerance`` | seconds that clocks may differ, by the policy of the lease |
| ``Fencing-Scope`` | what the lease permits, as JSON in quotes; absent: everything |

No library of HTTP is imported here: both halves use it, and so may other clients.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from tenure.contract.ids import FencingToken, TaskId
from tenure.contract.scope import UNLIMITED
from tenure.executor.core.receiving import Presented, Verdict
from tenure.executor.scope import GrantedScope

KEY: Final = "idempotency-key"
TOKEN: Final = "fencing-token"
RESOURCE: Final = "fencing-resource"
EXPIRES: Final = "fencing-expires"
TOLERANCE: Final = "fencing-tolerance"
SCOPE: Final = "fencing-scope"
REPLAYED: Final = "idempotent-replayed"
FENCE_PATH: Final = "/.well-known/tenure-fence"
PROBLEM_TYPE: Final = "application/problem+json"
MAX_KEY_CHARACTERS: Final = 255
MAX_TOKEN: Final = 2**53 - 1
MAX_TOLERANCE_SECONDS: Final = 3600.0
MAX_SCOPE_CHARACTERS: Final = 4000
TOO_LONG: Final = "too long"
"""In place of a scope that no header can carry: a receiver that looks at scopes refuses it."""
# RFC 8941, a string: printable ASCII, with a backslash before a quote or a backslash.
_STRING: Final = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_DIGITS: Final = re.compile(r"[0-9]{1,16}")


class Authority(Protocol):
    """What is sent of an attempt: its ``Context``."""

    @property
    def task_id(self) -> TaskId:
        """The task."""

    @property
    def fencing_token(self) -> FencingToken:
        """The attempt's token."""

    @property
    def expires_at(self) -> datetime:
        """The end of its lease."""

    @property
    def clock_tolerance_seconds(self) -> float:
        """The tolerance of its policy."""

    @property
    def scope(self) -> GrantedScope:
        """What the lease permits."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A refusal as both halves know it."""

    code: str
    status: int
    title: str


PROBLEMS: Final = {
    problem.code: problem
    for problem in (
        Problem("idempotency_key_missing", 400, "The request needs an Idempotency-Key."),
        Problem("fencing_token_missing", 400, "The request needs a Fencing-Token."),
        Problem("header_invalid", 400, "A header of the request cannot be understood."),
        Problem("out_of_scope", 403, "The lease does not permit this operation on this object."),
        Problem("body_too_large", 413, "The body is larger than guarded requests may be."),
        Problem(Verdict.STALE_TOKEN, 412, "A later attempt of the task holds its authority."),
        Problem(Verdict.AUTHORITY_OVER, 412, "The authority of the attempt is over."),
        Problem(Verdict.RUNNING, 409, "The first request with this key is still running."),
        Problem(
            Verdict.UNKNOWN, 409, "The first request with this key was lost: it may have acted."
        ),
        Problem(Verdict.NO_ANSWER, 409, "It was done before, and its answer was not kept."),
        Problem(Verdict.CONFLICT, 422, "The key stands for another request."),
        Problem("request_failed", 500, "The first request with this key ended in an error."),
        Problem("store_unavailable", 503, "The store of the receiver cannot be reached."),
    )
}


class HeaderFault(ValueError):
    """A header is missing or not understood; ``code`` is the problem's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def fencing_headers(authority: Authority, *, key: str | None = None) -> dict[str, str]:
    """The headers of a guarded request, for any client: ``key`` is an effect's id.

    Raises ValueError for a key that a header cannot carry.
    """
    headers = {
        "Fencing-Token": str(authority.fencing_token),
        "Fencing-Resource": quoted(authority.task_id),
        "Fencing-Expires": authority.expires_at.astimezone(UTC).isoformat(),
        "Fencing-Tolerance": format(authority.clock_tolerance_seconds, "f"),
    }
    said = authority.scope.to_json()
    if said is not None:
        headers["Fencing-Scope"] = _written(said if len(said) <= MAX_SCOPE_CHARACTERS else TOO_LONG)
    return headers if key is None else {"Idempotency-Key": quoted(key)} | headers


def presented(
    headers: Iterable[tuple[bytes, bytes]], *, scope: str, fingerprint: str | None
) -> Presented:
    """The authority and the key of a request that arrived. Without ``fingerprint`` no key is
    needed. Raises HeaderFault."""
    found: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name = raw_name.decode("latin-1").lower()
        if name not in (KEY, TOKEN, RESOURCE, EXPIRES, TOLERANCE, SCOPE):
            continue
        if name in found:
            raise HeaderFault("header_invalid", f"{name} is there more than once.")
        found[name] = raw_value.decode("latin-1").strip()
    for name in (TOKEN, RESOURCE, EXPIRES):
        if name not in found:
            raise HeaderFault("fencing_token_missing", f"{name} is missing.")
    if fingerprint is not None and KEY not in found:
        raise HeaderFault("idempotency_key_missing", f"{KEY} is missing.")
    resource = _string(RESOURCE, found[RESOURCE])
    return Presented(
        resource=resource,
        token=_token(found[TOKEN]),
        until=_until(found[EXPIRES], found.get(TOLERANCE, "0")),
        scope=scope,
        key="" if fingerprint is None else _string(KEY, found[KEY]),
        # Whoever names another task with somebody's key is not answered with what that one asked.
        fingerprint=None if fingerprint is None else f"{fingerprint} {resource}",
    )


def granted_scope(headers: Iterable[tuple[bytes, bytes]]) -> GrantedScope:
    """What the lease of a request permits. Raises HeaderFault."""
    texts = [value.decode("latin-1") for name, value in headers if name.lower() == SCOPE.encode()]
    if not texts:
        return GrantedScope(UNLIMITED, {})
    match = _STRING.fullmatch(texts[0].strip()) if len(texts) == 1 else None
    try:
        return GrantedScope.from_json("" if match is None else _unescaped(match[1]))
    except ValueError:
        raise HeaderFault("header_invalid", f"{SCOPE} is not understood.") from None


def problem_body(code: str, detail: str, **members: Any) -> tuple[int, bytes]:
    """Status and body of a refusal, as problem+json."""
    problem = PROBLEMS[code]
    value = {"type": f"urn:tenure:{code}", "title": problem.title, "status": problem.status}
    return problem.status, json.dumps(value | {"code": code, "detail": detail} | members).encode()


def problem_code(content_type: str, body: bytes) -> tuple[str | None, dict[str, Any]]:
    """Code and members of a refusal by a receiver's half; None for any other answer."""
    if not content_type.lower().startswith(PROBLEM_TYPE):
        return None, {}
    try:
        value = json.loads(body)
    except ValueError:
        return None, {}
    if not isinstance(value, dict) or value.get("type") != f"urn:tenure:{value.get('code')}":
        return None, {}
    return (value["code"], value) if value["code"] in PROBLEMS else (None, {})


def quoted(text: str) -> str:
    """A string of structured fields. Raises ValueError for what cannot be one."""
    written = _written(text)
    if not 1 <= len(text) <= MAX_KEY_CHARACTERS or _STRING.fullmatch(written) is None:
        raise ValueError(
            f"{text!r} is not 1 to {MAX_KEY_CHARACTERS} printable characters of ASCII."
        )
    return written


def _written(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _string(name: str, value: str) -> str:
    match = _STRING.fullmatch(value)
    text = "" if match is None else _unescaped(match[1])
    if not 1 <= len(text) <= MAX_KEY_CHARACTERS:
        raise HeaderFault(
            "header_invalid",
            f"{name} is 1 to {MAX_KEY_CHARACTERS} characters of ASCII in double quotes.",
        )
    return text


def _token(value: str) -> int:
    if _DIGITS.fullmatch(value) is None or int(value) > MAX_TOKEN:
        raise HeaderFault("header_invalid", f"{TOKEN} is a number up to {MAX_TOKEN}.")
    return int(value)


def _until(expires: str, tolerance: str) -> int:
    """Microseconds since 1970."""
    try:
        instant = datetime.fromisoformat(expires)
        seconds = float(tolerance)
        if instant.utcoffset() is None or not 0 <= seconds <= MAX_TOLERANCE_SECONDS:
            raise ValueError
        return int((instant.timestamp() + seconds) * 1_000_000)
    except (ValueError, OverflowError):
        raise HeaderFault(
            "header_invalid",
            f"{EXPIRES} is an instant with its zone, {TOLERANCE} 0 to"
            f" {MAX_TOLERANCE_SECONDS:g} seconds.",
        ) from None
