"""Try handlers without servers, or against real ones, with everything that goes wrong.

    async def test_greets(tenure_fleet: MakeFleet) -> None:
        async with tenure_fleet(app) as fleet:
            task = await fleet.submit(Greet, Person(name="Ada"))
            assert await fleet.result(task) == Greeting(text="Hello, Ada.")

``tenure_fleet`` is a fixture of the pytest plugin that comes with the package. Without pytest,
``MemoryFleet(app)`` is the same object. See docs/testing.md.
"""

from tenure.executor.testing.fleet import (
    Fleet,
    FleetTask,
    MakeFleet,
    NotDelivered,
    NotOpen,
    Stuck,
)
from tenure.executor.testing.memory.fleet import MemoryFleet
from tenure.executor.testing.story import Attempt, Happening, Receipt, Story

__all__ = [
    "Attempt",
    "Fleet",
    "FleetTask",
    "Happening",
    "MakeFleet",
    "MemoryFleet",
    "NotDelivered",
    "NotOpen",
    "Receipt",
    "Story",
    "Stuck",
]
