"""Output that ends up where it cannot be written, or where nobody reads it to its end."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

TOPICS = f"{shlex.quote(sys.executable)} -m topics"


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a real shell makes of a command, with the status of the first part of a pipe that failed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")} | environment
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"], capture_output=True, encoding="utf-8", errors="replace", env=env
    )


@pytest.mark.parametrize("command", ["config", "config --json", "config --reference", "--help", "serve --help"])
def test_reader_who_has_seen_enough_is_no_failure(command: str) -> None:
    # `true` reads nothing: whenever the command writes, its reader is gone.
    ran = shell(f"(sleep 0.05; {TOPICS} {command}) | true")
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("command", ["config", "config --json", "config --reference", "--help", "--version"])
def test_output_that_cannot_be_written_is_an_error_in_one_line(command: str) -> None:
    ran = shell(f"{TOPICS} {command} > /dev/full")
    told = "the output cannot be written: No space left on device"
    if "--json" in command:
        told = f'{{"error":{{"code":"output","message":"{told}"}}}}'
    else:
        told = f"error: {told}"
    assert (ran.returncode, ran.stderr) == (1, told + "\n")


def test_failure_that_cannot_be_told_is_one_all_the_same() -> None:
    assert shell(f"{TOPICS} nope > /dev/full 2>&1").returncode == 2
    assert shell(f"{TOPICS} config > /dev/full 2>&1").returncode == 1


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_command_works_without_the_streams_it_was_not_given(closed: str) -> None:
    ran = shell(f"{TOPICS} config {closed}")
    assert (ran.returncode, ran.stderr) == (0, "")


def test_input_that_is_closed_is_empty() -> None:
    for command, told in (("append orders", "the input held no line"), ("drop orders", "say --yes")):
        ran = shell(f"{TOPICS} {command} <&-")
        assert ran.returncode == 1
        assert told in ran.stderr
        assert "Traceback" not in ran.stderr


def test_characters_that_the_output_does_not_have_are_written_in_ascii(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(f'[server]\ndata_dir = "{tmp_path}/Grüße-😀"\n', encoding="utf-8")
    for coding in ("ascii", "latin-1"):
        ran = shell(f"{TOPICS} config --config {config}", PYTHONIOENCODING=coding)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert "\\U0001f600" in ran.stdout
        lines = shell(f"{TOPICS} config --config {config} --json", PYTHONIOENCODING=coding)
        assert lines.returncode == 0
        values = [json.loads(line)["value"] for line in lines.stdout.splitlines()]
        assert f"{tmp_path}/Grüße-😀" in values
