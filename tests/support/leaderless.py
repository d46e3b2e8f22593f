"""Quorum queues of a single broker that come back without a leader.

RabbitMQ 3.10 answers the declaration of a quorum queue up to a second before the file that maps the
queue's name to its log is written. A broker killed in that second comes back with the queue, which
can be declared, bound and deleted; consumers, publishers and readers wait for ever. A kill at the
right moment shows that nearly always; putting the file back as it was before the declarations shows
the same always.
"""

from pathlib import Path

from tenure.cli.local.rabbitmq import PrivateRabbitmq


class BeforeDeclarations:
    """What a broker has written of its queues. ``kill`` ends it as if nothing had come since."""

    def __init__(self, server: PrivateRabbitmq) -> None:
        self._server = server
        self._written = {path: path.read_bytes() for path in self._files()}
        assert self._written, "no quorum queues here"

    def kill(self) -> None:
        """Quorum queues that were declared meanwhile have no leader after the next start."""
        self._server.kill()
        for path in self._files():
            path.write_bytes(self._written[path])

    def _files(self) -> list[Path]:
        return list((self._server.directory / "mnesia").glob("*/quorum/*/names.dets"))
