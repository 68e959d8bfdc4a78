"""Output that ends up where it cannot be written, or where nobody reads it to its end."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

TOPICS = f"{shlex.quote(sys.executable)} -m topics"


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a real shell makes of a command, with the status of the first part of a pipe that failed."""
    import os

    env = {**os.environ, **environment}
    return subprocess.run(["bash", "-c", f"set -o pipefail; {line}"], capture_output=True, text=True, env=env)


@pytest.mark.parametrize("command", ["config", "config --json", "config --reference", "--help", "serve --help"])
def test_reader_who_has_seen_enough_is_no_failure(command: str) -> None:
    # `true` reads nothing: whenever the command writes, its reader is gone.
    ran = shell(f"(sleep 0.05; {TOPICS} {command}) | true")
    assert (ran.returncode, ran.stderr) == (0, "")
