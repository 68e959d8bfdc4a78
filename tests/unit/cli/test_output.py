"""What is printed beside results: how far a long command is."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from topics.cli import output
from topics.cli.output import Output


def watched() -> tuple[Output, io.StringIO]:
    screen = io.StringIO()
    return Output(errors=Console(file=screen, force_terminal=True)), screen


def test_progress_overwrites_itself_and_leaves_an_empty_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PROGRESS_S", 0)
    out, screen = watched()
    out.progress(1000, "records")
    out.progress(2000, "records")
    out.progress_over()
    assert screen.getvalue() == "\r1,000 records\r2,000 records\r\x1b[K"


def test_short_work_shows_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PROGRESS_S", 3600)
    out, screen = watched()
    out.progress(1, "records")
    out.progress_over()
    assert screen.getvalue() == ""


def test_nobody_who_reads_a_pipe_sees_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PROGRESS_S", 0)
    pipe = io.StringIO()
    out = Output(errors=Console(file=pipe, force_terminal=False))
    out.progress(1000, "records")
    out.progress_over()
    assert pipe.getvalue() == ""
