"""Printing: the same values for people, or as JSON for programs.

What comes from a server or a file is shown, never obeyed: control characters are written out, so that a record cannot
move the cursor or change the title of somebody's terminal.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from json import dumps as escape_json
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH: Final = 10_000
"""Lines that go into a pipe or a file are not wrapped."""
NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]+")
PROGRESS_S: Final = 0.2
"""A line that overwrites itself more often is not read, and costs more than it tells."""


class OutputLost(Exception):
    """What was printed could not be written: a full disk, most likely."""


@contextmanager
def writing() -> Iterator[None]:
    """Tells errors of the output from those of any other file."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputLost(f"the output cannot be written: {error.strerror or error}") from error


class Printer(Console):
    """A console whose reader may leave before the end, as `head` does, or whose disk may fill: what that means is for
    the caller to say."""

    def print(self, *values: Any, **how: Any) -> None:
        with writing():
            super().print(*values, **how)

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
        told = Text.assemble(("error: ", "bold red"), visible(message))
        if self.json:
            told = Text(self._coded(encode({"error": {"code": code, "message": message}})))
        # Where nothing can be said any more, the exit status still says it.
        with suppress(OutputLost, BrokenPipeError):
            self._errors.print(told, soft_wrap=True)

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
        self._console.print(Text(self._coded(encode(value))), soft_wrap=True)

    def _coded(self, json: str) -> str:
        """JSON in characters that the output has: a terminal or a pipe without Unicode gets escapes."""
        if json.isascii() or self._console.encoding.startswith("utf"):
            return json
        # Outside of strings JSON is ASCII.
        return NOT_ASCII.sub(lambda found: escape_json(found[0])[1:-1], json)


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
