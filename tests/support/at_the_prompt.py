"""The command `tenure` in this process: as at a prompt, without starting Python for each word."""

import asyncio
import json
import re
from typing import Any

import pytest

from tenure.cli.exits import Exit
from tenure.cli.main import run


class Prompt:
    """Somebody with an operator's token."""

    def __init__(
        self, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("TENURE_URL", url)
        monkeypatch.setenv("TENURE_TOKEN", "operator-token-0001")
        self._capsys = capsys

    async def __call__(self, *words: str) -> tuple[int, str]:
        """The exit code, and what was printed: output, then errors."""
        self._capsys.readouterr()
        code = await asyncio.to_thread(run, words)
        said = self._capsys.readouterr()
        return code, said.out + said.err

    async def json(self, *words: str) -> Any:
        """What ``-o json`` prints; others in this process may print lines of their own."""
        code, said = await self(*words, "-o", "json")
        assert code == Exit.DONE, said
        begin = re.search(r"^\{", said, re.MULTILINE)
        assert begin is not None, said
        return json.JSONDecoder().raw_decode(said[begin.start() :])[0]
