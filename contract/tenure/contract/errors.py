"""The root of the one error tree.

TenureError                      code, message, what to do next
├── ContractError                bytes or values that break the wire format
│   ├── UndecodableEvent
│   ├── InvalidTaskType
│   └── InvalidPayload
└── … each process adds its own branch in its ``errors.py``
"""

from tenure.contract.codes import Code


def sentences(message: str, next_step: str) -> str:
    """Both as one text, with a full stop between them where the first has none."""
    if message and next_step and message[-1] not in ".!?:":
        message += "."
    return f"{message} {next_step}".strip()


class TenureError(Exception):
    """Something the reader can act upon.

    ``code`` is stable and machine-readable; ``message`` says what is wrong; ``next_step`` says what
    to do about it (empty when the message already does).
    """

    code: str = Code.INTERNAL_ERROR

    def __init__(self, message: str, *, next_step: str = "", code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return sentences(self.message, self.next_step)


class ContractError(TenureError):
    """Bytes or values that break the wire format."""


class UndecodableEvent(ContractError):
    """A message body that is no event of a schema version this reader knows."""

    code = "undecodable_event"


class InvalidTaskType(ContractError, ValueError):
    """A task type is declared with a name or models that it cannot have."""

    code = "invalid_declaration"


class InvalidPayload(ContractError):
    """A JSON payload that cannot be stored or sent."""

    code = Code.INVALID_FIELD
