"""The snippets of a page, run in their order as they stand.

`sh` blocks are typed into one shell, `python` blocks run in one namespace; a `text` block is what the block before it
prints. What differs from run to run (times, durations, made-up ids) is masked on both sides.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_DONE: Final = "--done--"
_PATIENCE_S: Final = 600
"""A page that waits for what does not come is ended then."""
_STREAM_S: Final = 1
"""A stream never ends; so long it is looked at."""

_MASKS: Final = (
    (re.compile(r'"performance":\{[^}]*\}'), '"performance":{…}'),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,]\d+Z?"), "TIME"),
    (re.compile(r"\b\d{13}\b"), "MS"),
    (re.compile(r"\bwid_[\w-]+"), "WID"),
    (re.compile(r"\b\d+\.\d+ (?=[GM]iB)"), "N "),
    (re.compile(r"\b\d+\.\d{3,}\b"), "N"),
    (re.compile(r'"(uptime_ms|idle_ms)":\d+'), r'"\1":N'),
    (re.compile(r"(?<=\bbyte )\d+|(?<=but )\d+(?= bytes)"), "OFFSET"),
    (re.compile(r"^ +\d+(?=  (?:append|DAMAGE)\b)", re.MULTILINE), "OFFSET"),
    (re.compile(r"topics \S+ serves"), "topics VERSION serves"),
    (re.compile(r"[ \t]+$", re.MULTILINE), ""),
)


@dataclass(frozen=True)
class Snippet:
    page: str
    line: int
    language: str
    code: str
    prints: str | None
    """None = the page does not say."""


def snippets(page: str) -> list[Snippet]:
    text = (ROOT / page).read_text(encoding="utf-8")
    found: list[Snippet] = []
    for block in _BLOCK.finditer(text):
        language, body = block.groups()
        if language == "text" and found and found[-1].prints is None:
            last = found.pop()
            found.append(Snippet(page, last.line, last.language, last.code, body))
        else:
            found.append(Snippet(page, text.count("\n", 0, block.start()) + 1, language, body, None))
    return found


def masked(text: str) -> str:
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    return text.strip("\n")


class Shell:
    """One bash for the `sh` blocks of a page, in which `topics` is this package. The first command to fail ends it."""

    def __init__(self, folder: Path, **variables: str) -> None:
        tools = folder / ".tools"
        tools.mkdir()
        command = tools / "topics"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m topics.cli.main "$@"\n')
        command.chmod(0o755)
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        environ |= {
            "PYTHONPATH": os.pathsep.join(part for part in sys.path if part),
            "COLUMNS": "200",
            **variables,
        }
        environ["PATH"] = f"{tools}:{environ['PATH']}"
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._patience = threading.Timer(_PATIENCE_S, self._end)
        self._patience.start()
        self.run(f'set -e\ncurl() {{ command curl -s --max-time {_STREAM_S} "$@" || [ $? = 28 ]; }}\n')

    def run(self, code: str) -> str:
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(f"{code}\necho; echo {_DONE}\n")
        self._bash.stdin.flush()
        lines: list[str] = []
        for line in self._bash.stdout:
            if line == f"{_DONE}\n":
                return "".join(lines)
            lines.append(line)
        raise AssertionError(f"{code}failed with status {self._bash.wait()}:\n{''.join(lines)}")

    def close(self) -> None:
        """With everything that the page left running in it."""
        self._patience.cancel()
        self._end()
        self._bash.communicate()

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)


def run_page(page: str, folder: Path, names: Mapping[str, str], **variables: str) -> Iterator[tuple[Snippet, str]]:
    """Each snippet with what it printed, in a folder of its own. `names`: of the page, which are others here."""
    space: dict[str, Any] = {"__name__": page}
    shell = Shell(folder, **variables)
    with contextlib.chdir(folder), contextlib.closing(shell):
        for snippet in snippets(page):
            code = replaced(snippet.code, names)
            if snippet.language == "sh":
                yield snippet, shell.run(code)
            elif snippet.language == "python":
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    exec(compile(code, f"{page}:{snippet.line}", "exec"), space)
                yield snippet, printed.getvalue()
            elif snippet.language in ("ini", "toml"):
                write_file(code)


def replaced(text: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        text = text.replace(old, new)
    return text


def write_file(code: str) -> None:
    """Its first line is a comment that names it."""
    path = re.match(r"# (/\S+)", code)
    assert path is not None, f"this names no file in its first line:\n{code}"
    Path(path.group(1)).write_text(code, encoding="utf-8")


def check(page: str, folder: Path, names: Mapping[str, str], **variables: str) -> None:
    shown = {new: old for old, new in names.items()}
    for snippet, printed in run_page(page, folder, names, **variables):
        if snippet.prints is not None:
            where = f"{page}:{snippet.line} prints something else"
            assert masked(replaced(printed, shown)) == masked(snippet.prints), where
