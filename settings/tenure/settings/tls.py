"""What a failed verification of a certificate looks like, whichever library shows it."""

import ssl


def untrusted(error: BaseException) -> str:
    """Why the peer's certificate was not accepted; empty when that is not what went wrong.

    Libraries wrap the reason, so causes are followed.
    """
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        if isinstance(found, ssl.SSLCertVerificationError):
            return found.verify_message or str(found)
        found = found.__cause__ or found.__context__
    return ""


def not_tls(error: BaseException) -> bool:
    """Whether the peer does not speak TLS at all."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        if isinstance(found, ssl.SSLError) and found.reason in _NO_TLS:
            return True
        if "rejected SSL upgrade" in str(found):  # how the PostgreSQL driver says it
            return True
        found = found.__cause__ or found.__context__
    return False


_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})
