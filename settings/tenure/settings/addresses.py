"""Addresses of the servers, and what must hold of them before anybody connects."""

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from pydantic import AfterValidator

from tenure.settings.secrets import MASK, Secret

Address = str | Callable[[], str]
"""A URL, or a function that is asked for it at each new connection."""

HEARTBEAT_SECONDS: Final = 10
"""A dead broker is noticed in about three times as long."""

_SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_VERIFYING: Final = ("require", "verify-ca", "verify-full")
"""With a root certificate ``require`` verifies as ``verify-ca`` does, as in libpq."""


def asked(address: Address) -> str:
    """The URL to connect to now."""
    return address if isinstance(address, str) else address()


class Url(Secret[str]):
    """A URL with a password in it."""

    def shown(self) -> str:
        """The URL without its password."""
        return masked(self.current())


class DatabaseUrl(Url):
    """``postgresql://user:password@host:port/database``, with ``?sslmode=verify-full&sslrootcert=``
    for a server whose certificate is to be verified."""

    @classmethod
    def parse(cls, text: str) -> str:
        """Checks the parts that a driver would trip over later."""
        url = _split(text)
        if url.scheme not in ("postgresql", "postgres"):
            raise ValueError("write postgresql://user:password@host:port/database")
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        mode, root = query.get("sslmode"), query.get("sslrootcert")
        if mode is not None and mode not in _SSL_MODES:
            raise ValueError(f"sslmode is one of {', '.join(_SSL_MODES)}")
        if root is not None:
            if mode not in _VERIFYING:
                raise ValueError("sslrootcert is used with sslmode=verify-full only: add that")
            readable_certificates(Path(root), "sslrootcert")
        return text


class BrokerUrl(Url):
    """``amqp://user:password@host:port/vhost``, or ``amqps://``, which always verifies."""

    @classmethod
    def parse(cls, text: str) -> str:
        """Checks scheme and host, and that nobody asks not to verify."""
        url = _split(text)
        if url.scheme not in ("amqp", "amqps") or not url.hostname:
            raise ValueError("write amqp://user:password@host:port/vhost, or amqps://")
        if "no_verify_ssl" in dict(parse_qsl(url.query, keep_blank_values=True)):
            raise ValueError("certificates are always verified: remove no_verify_ssl")
        return text


def broker_address(
    address: Address, *, ca_file: Path | None = None, name: str = ""
) -> Callable[[], str]:
    """The broker's URL for the AMQP library: with our heartbeat, with ``name`` for the broker's
    list of connections, and with the certificate authority to verify against. Query parameters of
    the URL itself go first."""

    def now() -> str:
        parts = urlsplit(asked(address))
        query = {"heartbeat": str(HEARTBEAT_SECONDS)}
        if name:
            query["name"] = name
        if ca_file is not None:
            query["cafile"] = str(ca_file)
        query.update(parse_qsl(parts.query))
        return parts._replace(query=urlencode(query)).geturl()

    return now


def masked(url: str) -> str:
    """The URL with its passwords hidden."""
    parts = _split(url)
    netloc = parts.netloc
    if parts.password is not None:
        login, _, host = netloc.rpartition("@")
        netloc = f"{login.partition(':')[0]}:{MASK}@{host}"
    query = parts.query
    if "password" in query:
        pairs = parse_qsl(query, keep_blank_values=True)
        query = "&".join(f"{name}={MASK if 'password' in name else value}" for name, value in pairs)
    return f"{parts.scheme}://{netloc}{parts.path}{f'?{query}' if query else ''}"


def readable_certificates(path: Path, what: str) -> None:
    """Raises ValueError when the file holds no certificates that can be used."""
    try:
        ssl.create_default_context(cafile=str(path))
    except ssl.SSLError as error:
        raise ValueError(f"{what} {path} holds no certificate in PEM form") from error
    except OSError as error:
        raise ValueError(f"{what} {path} cannot be read: {error.strerror}") from error


def host_and_port(value: str) -> tuple[str, int]:
    """``127.0.0.1:8420`` or ``[::1]:8420``. Raises ValueError otherwise."""
    host, separator, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdecimal() or int(port) > 65_535:
        raise ValueError("write host:port, like 127.0.0.1:8420")
    return host, int(port)


def _listen_address(value: str) -> str:
    host_and_port(value)
    return value


def _http_url(value: str) -> str:
    url = _split(value)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError("write http://host:port, or https://")
    return value


def _certificates_file(value: Path) -> Path:
    readable_certificates(value, "the file")
    return value


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # judged only when it is asked for
    except ValueError as error:
        raise ValueError("this is no URL: a password's special characters need %XX") from error
    return parts


ListenAddress = Annotated[str, AfterValidator(_listen_address)]
"""``host:port`` to listen on; port 0 takes a free one."""

HttpUrl = Annotated[str, AfterValidator(_http_url)]

CertificatesFile = Annotated[Path, AfterValidator(_certificates_file)]
"""A file with the certificates of authorities, in PEM form."""
