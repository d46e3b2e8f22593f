"""Users of a broker with rights of their own, made through its management plugin."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.support.isolation import BrokerSpace, with_login
from tests.support.services import BrokerServer
from tests.support.waiting import eventually


@dataclass(frozen=True)
class BrokerUser:
    """A user without any tag. ``url`` leads to the test's vhost with its first password."""

    name: str
    url: str
    _management: httpx2.AsyncClient

    async def set_password(self, password: str) -> None:
        """Another password from now on; open connections stay."""
        answer = await self._management.put(
            f"/api/users/{self.name}", json={"password": password, "tags": ""}
        )
        answer.raise_for_status()

    async def disconnect(self) -> None:
        """Close its connections; returns once there was one to close."""

        async def closed() -> bool:
            found = (await self._management.get(f"/api/connections/username/{self.name}")).json()
            for connection in found:
                await self._management.delete(f"/api/connections/{connection['name']}")
            return bool(found)

        await eventually(closed)


@asynccontextmanager
async def broker_user(
    server: BrokerServer,
    space: BrokerSpace,
    *,
    configure: str = ".*",
    write: str = ".*",
    read: str = ".*",
) -> AsyncIterator[BrokerUser]:
    """A user with these permissions (regular expressions) on the test's vhost and nothing else."""
    if server.management is None:
        pytest.fail("The broker has no management plugin, so no limited user can be made for this.")
    parts = urlsplit(server.management)
    login = (parts.username or "", parts.password or "")
    address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    vhost = urlsplit(space.url).path.removeprefix("/")
    name, password = f"user-{secrets.token_hex(4)}", secrets.token_hex(8)
    async with httpx2.AsyncClient(base_url=address, auth=login, timeout=120) as client:
        user = BrokerUser(name, with_login(space.url, name, password), client)
        await user.set_password(password)
        rights = {"configure": configure, "write": write, "read": read}
        answer = await client.put(f"/api/permissions/{vhost}/{name}", json=rights)
        answer.raise_for_status()
        try:
            yield user
        finally:
            (await client.delete(f"/api/users/{name}")).raise_for_status()
