"""What the clerk, who orders, and the bookkeeper have in common: the task type."""

from pydantic import BaseModel

from tenure.contract.tasktype import TaskType


class Transfer(BaseModel):
    """Move so many cents from one account to another."""

    transfer_id: int
    source: str
    target: str
    cents: int


class Booked(BaseModel):
    """It is in the books, written under this token."""

    transfer_id: int
    fencing_token: int


BookTransfer = TaskType("book-transfer", input=Transfer, output=Booked)
