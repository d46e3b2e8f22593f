"""What the application and the executor have in common: the task type."""

from pydantic import BaseModel

from tenure.contract.tasktype import TaskType


class InvoiceIn(BaseModel):
    """An order as it was when it was placed."""

    order_id: int
    customer: str
    article: str
    quantity: int
    price_cents: int


class InvoiceOut(BaseModel):
    """The invoice for it."""

    number: str
    total_cents: int


Invoice = TaskType("invoice", input=InvoiceIn, output=InvoiceOut)
