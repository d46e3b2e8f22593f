"""`tenure node list`: the processes that are there."""

from tests.support.commands import tenure, tenure_json
from tests.support.coordinator import fleet
from tests.support.isolation import BrokerSpace, FreshDatabase


async def test_starts_that_have_ended_are_listed_for_those_who_ask(
    database: FreshDatabase, broker: BrokerSpace
) -> None:
    async with fleet(database, broker) as api:
        ended = await api.register("desk")
        current = await api.register("desk")  # as after a reload

        async def listed(*words: str) -> list[tuple[str, str]]:
            nodes = (await tenure_json(api, "node", "list", *words))["nodes"]
            return [(node["incarnation"], node["state"]) for node in nodes]

        assert await listed() == [(current, "active")]
        assert await listed("--all") == [(current, "active"), (ended, "gone")]
        _, table, _ = await tenure(api, "node", "list")
        assert ended not in table
        assert table.splitlines()[-1] == "1 more ended within the last hour: --all lists them"
        _, table, _ = await tenure(api, "node", "list", "--all")
        assert ended in table
        assert "--all" not in table
