"""A history for a database: a bit of everything that can happen."""

from uuid import uuid4

from tenure.coordinator.core.commands import Renew
from tests.support.authority import Bench
from tests.support.every_command import EVERY


async def live(bench: Bench) -> None:
    """Every command in the situation that it changes, and a few whole lives of tasks."""
    await bench.owner.execute("insert into tenure.intake_roles values (session_user, 'default')")
    for prepare in EVERY:
        await bench.register()
        await (await prepare(bench))()
        await bench.owner.execute(
            "update tenure.nodes set quarantined_at = null, quarantined_by = null,"
            " quarantine_reason = null"
        )
    await bench.register(slots=20, cpu_millis=8000, memory_bytes=1_000_000)
    failed = await bench.running()
    await bench.fail(failed)
    await bench.try_again(failed.task_id)
    again = await bench.assigned(failed.task_id)
    await bench.take(again)
    await bench.authority.renew([bench.command(Renew, again)], again.incarnation)
    await bench.deliver(again, 1)
    await bench.deliver(again, 2)  # another content: kept as evidence
    lost = await bench.running()
    await bench.end_lease(lost)
    await bench.expire(lost.task_id)
    for scope, name in (("type", "sha256"), ("each_key", "*")):
        await bench.owner.execute(
            "select tenure.set_limit($1, 'default', $2, 50, 100, 1, 100, 'tests', 10)", scope, name
        )
    for replay_id in (uuid4(), uuid4()):
        await bench.owner.execute(
            "select tenure.start_replay($1, '', 'q', '{}', 10, false, 0, true, 'why', 'tests')",
            replay_id,
        )
    await bench.owner.execute(
        "select tenure.change_replay($1, 'cancelled', 'why', 'tests', false)", replay_id
    )
    await bench.running(concurrency_key="acme")
    await bench.submit()
