"""A command as somebody types it: its arguments in, what it printed and its exit status out."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from topics.cli.main import run


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Command = Callable[..., Ran]


@pytest.fixture
def topics(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs the command in this process, away from the settings of the machine that runs the tests."""
    import os

    for name in [name for name in os.environ if name.startswith("TOPICS_")]:
        monkeypatch.delenv(name)

    def type_in(*arguments: str, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = run(arguments)
        printed = capsys.readouterr()
        return Ran(status, printed.out, printed.err)

    return type_in
