"""An executor that says what it is told, for stacks of tests: ``tests.support.echo:app``."""

from pydantic import BaseModel

from tenure.contract.tasktype import TaskType
from tenure.executor import Context, Executor


class Text(BaseModel):
    """What is said."""

    text: str


Echo = TaskType("echo", input=Text, output=Text)
app = Executor("echo", version="1")


@app.task(Echo)
async def echo(input: Text, context: Context[None]) -> Text:
    """The same again."""
    return input
