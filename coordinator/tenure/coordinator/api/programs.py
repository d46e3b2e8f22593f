"""Workload profiles and the programs that run them, as operators see and steer them."""

import re
from typing import Annotated, Final

from pydantic import Field

from tenure.contract.codec import check_value
from tenure.contract.codes import Code
from tenure.contract.ids import TASK_TYPE_PATTERN
from tenure.contract.scheduling import ExecutableChange, ProfilePush
from tenure.coordinator.api.endpoint import Answer, Call
from tenure.coordinator.api.reading import Query, read_model
from tenure.coordinator.api.wire import declared_types
from tenure.coordinator.core.commands import Executable
from tenure.coordinator.errors import RequestRefused
from tenure.coordinator.store.scheduling import SchedulingReads

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class ProfileQuery(Query):
    """Of one type, or of all."""

    type: Annotated[str, Field(pattern=f"^{TASK_TYPE_PATTERN.pattern}$")] | None = None


class Programs:
    """Handlers of ``/v1/profiles`` and ``/v1/executables``."""

    def __init__(self, reads: SchedulingReads, *, schema_limit_bytes: int) -> None:
        self._reads = reads
        self._schema_limit_bytes = schema_limit_bytes

    async def profiles(self, call: Call) -> Answer:
        """Profiles of the tenant, newest first."""
        return Answer(
            await self._reads.profiles(call.identity.tenant, call.query(ProfileQuery).type)
        )

    async def push(self, call: Call) -> Answer:
        """Register declarations before any node runs them."""
        request = read_model(await call.body(), ProfilePush)
        program = request.executable
        if program is not None:
            check_value([program.name, program.version], "executable")
        declared = declared_types(
            request.task_types, program, schema_limit_bytes=self._schema_limit_bytes
        )
        tenant = call.identity.tenant
        executable = None if program is None else Executable(**program.model_dump())
        await self._reads.push_profiles(tenant, declared, executable)
        pushed = {one.profile.digest for one in declared}
        listed = await self._reads.profiles(tenant, None)
        return Answer(
            listed.model_copy(
                update={"profiles": tuple(one for one in listed.profiles if one.digest in pushed)}
            )
        )

    async def executables(self, call: Call) -> Answer:
        """Programs of the tenant, the one seen last first."""
        return Answer(await self._reads.executables(call.identity.tenant, None))

    async def set_executable(self, call: Call) -> Answer:
        """Withdraw a program, or register it again."""
        digest = call.path("digest")
        request = read_model(await call.body(), ExecutableChange)
        tenant = call.identity.tenant
        if _DIGEST.fullmatch(digest):
            await self._reads.set_executable(tenant, digest, request.state, call.identity.name)
            listed = await self._reads.executables(tenant, digest)
            if listed.executables:
                return Answer(listed.executables[0])
        raise RequestRefused(
            Code.NOT_FOUND,
            f"There is no executable {digest!r}.",
            next_step="See `tenure executable list`.",
        )
