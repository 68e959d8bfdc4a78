"""A server that cannot take its port, or tell it, says so and what to do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path


def test_port_that_is_taken_is_told_with_a_remedy(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = subprocess.run(
            [sys.executable, "-m", "topics.cli.main", "serve", "--port", port, "--data-dir", str(tmp_path / "data")],
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
            env={name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")},
        )  # fmt: skip
    assert ran.returncode == 1
    assert ran.stderr == (
        f"topics: cannot listen on 127.0.0.1:{port}: another program listens there; choose another port with --port\n"
    )


def test_port_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    port_file = str(tmp_path / "nowhere" / "port")
    ran = subprocess.run(
        [
            sys.executable, "-m", "topics.cli.main", "serve",
            "--port", "0", "--port-file", port_file, "--data-dir", str(tmp_path / "data"),
        ],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
        env={name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")},
    )  # fmt: skip
    assert ran.returncode == 1
    assert ran.stderr == f"topics: the port file {port_file} cannot be written: No such file or directory\n"
