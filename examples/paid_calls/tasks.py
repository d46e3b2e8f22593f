"""What the asking program and the executor have in common: the task types."""

from pydantic import BaseModel

from tenure.contract.tasktype import TaskType


class Text(BaseModel):
    """What is to be translated."""

    text: str


class Translation(BaseModel):
    """What came of it, and what it cost."""

    text: str
    cents: int


class Bill(BaseModel):
    """What is to be paid."""

    cents: int


class Paid(BaseModel):
    """What was paid, under which identifier, and the number that the provider gave it."""

    payment_id: str
    cents: int
    receipt: int


Translate = TaskType("translate", input=Text, output=Translation)
PayBill = TaskType("pay-bill", input=Bill, output=Paid)
