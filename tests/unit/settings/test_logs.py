"""How processes log, each case in a process of its own."""

import json
import subprocess
import sys
from typing import Any

PROGRAM = """
import logging
import structlog
from tenure.settings.logs import configure

configure("json", "info", silenced=["chatty"])
password = "hunter2"
try:
    raise ValueError("wrong")
except ValueError:
    structlog.get_logger().exception("it failed", task="t1")
structlog.get_logger().debug("too little to say")
logging.getLogger("a.driver").warning("slow: %s", "reply")
logging.getLogger("a.driver").info("connected")
logging.getLogger("chatty").error("again")
"""


def said(program: str) -> list[dict[str, Any]]:
    """The lines on standard error, all of them JSON."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_lines_of_the_process_and_of_libraries_are_json_alike() -> None:
    lines = said(PROGRAM)
    assert [(line["level"], line["event"]) for line in lines] == [
        ("error", "it failed"),
        ("warning", "slow: reply"),
    ]
    assert all("timestamp" in line for line in lines)
    assert lines[0]["exception"][0]["exc_type"] == "ValueError"
    assert "hunter2" not in json.dumps(lines)


def test_libraries_are_let_through_as_low_as_the_process_asks() -> None:
    asked = PROGRAM.replace('silenced=["chatty"]', "silenced=(), libraries_from=logging.DEBUG")
    assert [line["event"] for line in said(asked)] == [
        "it failed",
        "slow: reply",
        "connected",
        "again",
    ]
