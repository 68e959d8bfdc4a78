"""Printing: the same values for people, or as JSON for programs.

What comes from a server or a file is shown, never obeyed: control characters are written out, so that a record cannot
move the cursor or change the title of somebody's terminal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH: Final = 10_000
"""Lines that go into a pipe or a file are not wrapped."""
PROGRESS_S: Final = 0.2
"""A line that overwrites itself more often is not read, and costs more than it tells."""


class Printer(Console):
    """A console whose reader may leave before the end, as `head` does: what that means is for the caller to say."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Output:
    def __init__(self, json: bool = False, console: Console | None = None, errors: Console | None = None) -> None:
        self.json = json
        self._console = console or make_console(stderr=False)
        self._errors = errors or make_console(stderr=True)
        self._progress_s = time.monotonic()
        self._progressed = False

    def fields(self, values: Mapping[str, Any]) -> None:
        """One thing: a JSON object, or a line per field."""
        if self.json:
            self._raw(values)
            return
        table = Table(box=None, show_header=False, pad_edge=False)
        for name, value in flat(values):
            table.add_row(Text(name, "bold"), Text(shown(value)))
        self._console.print(table)

    def rows(self, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], empty: str) -> None:
        """Many things of one kind: JSON Lines, or a table. `empty` is what people read where there is none."""
        if self.json:
            for row in rows:
                self._raw(row)
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column)
        for row in rows:
            table.add_row(*(Text(shown(row.get(column))) for column in columns))
        if table.row_count:
            self._console.print(table)
        else:
            self.note(empty)

    def line(self, values: Mapping[str, Any], text: str) -> None:
        """One of many that come over time: a JSON object on a line, or the text."""
        if self.json:
            self._raw(values)
        else:
            self._console.print(Text(visible(text)), soft_wrap=True)

    def note(self, text: str) -> None:
        """For people only, beside the result."""
        self._errors.print(Text(visible(text)), soft_wrap=True)

    def failed(self, code: str, message: str) -> None:
        if self.json:
            self._errors.print(Text(encode({"error": {"code": code, "message": message}})), soft_wrap=True)
        else:
            self._errors.print(Text.assemble(("error: ", "bold red"), visible(message)), soft_wrap=True)

    def progress(self, done: int, what: str) -> None:
        """Overwrites itself; only where somebody watches, and not before there is something to wait for."""
        now = time.monotonic()
        if self._errors.is_terminal and now >= self._progress_s + PROGRESS_S:
            self._progress_s, self._progressed = now, True
            # Written as it is: `Console.print` takes carriage returns for noise and leaves them out.
            self._errors.file.write(f"\r{done:,} {what}")
            self._errors.file.flush()

    def progress_over(self) -> None:
        if self._progressed:
            self._progressed = False
            self._errors.file.write("\r\x1b[K")
            self._errors.file.flush()

    def _raw(self, value: Any) -> None:
        self._console.print(Text(encode(value)), soft_wrap=True)


def make_console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    return Printer(stderr=stderr, highlight=False, markup=False, width=None if stream.isatty() else PIPE_WIDTH)


def encode(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=_plain).decode()


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, Sequence) else str(value)


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def shown(value: Any) -> str:
    """A value in a table: text as it is, nothing as a dash, the rest as JSON."""
    if value is None:
        return "–"
    return visible(value) if isinstance(value, str) else visible(encode(value))


def visible(text: str) -> str:
    """Control characters written out; line feeds and tabs too, so that a value stays in its line."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
