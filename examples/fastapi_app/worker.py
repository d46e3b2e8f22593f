"""The executor: ``tenure executor fastapi_app.worker:app``."""

from fastapi_app.tasks import Invoice, InvoiceIn, InvoiceOut
from tenure.executor import Context, Executor

app = Executor("invoices", version="1")


@app.task(Invoice, effects="none")
async def write_invoice(input: InvoiceIn, context: Context[None]) -> InvoiceOut:
    """The number follows from the order, so that another attempt writes the same invoice."""
    return InvoiceOut(
        number=f"INV-{input.order_id:06}", total_cents=input.quantity * input.price_cents
    )
