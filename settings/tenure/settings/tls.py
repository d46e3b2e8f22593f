"""What a failed start of TLS looks like, whichever library shows it, and what to say about it."""

import ssl
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})
_HINTS: Final = {
    "database": "Check the host and sslrootcert in TENURE_DATABASE_URL.",
    "broker": "Check the host in TENURE_BROKER_URL, and TENURE_BROKER_CA_FILE.",
}


class TlsFault(NamedTuple):
    """For an error of the code ``certificate_untrusted``."""

    message: str
    next_step: str


def tls_fault(error: BaseException, server: Literal["database", "broker"]) -> TlsFault | None:
    """What is wrong with the server's TLS, when that is why there is no connection.

    Libraries wrap the reason, so causes are followed.
    """
    for found in _chain(error):
        if isinstance(found, ssl.SSLCertVerificationError):
            reason = found.verify_message or str(found)
            return TlsFault(
                f"The {server}'s certificate is not accepted: {reason}.", _HINTS[server]
            )
        plain = isinstance(found, ssl.SSLError) and found.reason in _NO_TLS
        if plain or "rejected SSL upgrade" in str(found):  # the PostgreSQL driver's words
            return TlsFault(
                f"The {server} does not speak TLS at this address.",
                f"Check the port in TENURE_{server.upper()}_URL; TLS may have one of its own.",
            )
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__
