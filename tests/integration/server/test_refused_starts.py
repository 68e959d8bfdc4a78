"""A server that cannot start says why, in one line that names the place and the remedy."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from topics.server import told_meanwhile


def start(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "topics", "serve", *arguments],
        cwd=folder, capture_output=True, text=True, check=False, timeout=120,
        env={name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")},
    )  # fmt: skip


def test_port_that_is_taken_is_told_with_a_remedy(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = start(tmp_path, "--port", port)
    assert ran.returncode == 1
    assert ran.stderr == (
        f"error: cannot listen on 127.0.0.1:{port}: another program listens there; choose another port with --port\n"
    )


@pytest.mark.parametrize(
    ("arguments", "told", "status"),
    [
        (["--data-dir", "file"], "/file cannot be opened: it is a file, not a directory", 1),
        (["--data-dir", "file/deeper"], "/file/deeper cannot be opened: ", 1),
        (["--port-file", "none/port"], "the port file none/port cannot be written: No such file or directory", 2),
        (
            ["--tls-cert", "c.pem", "--tls-key", "k.pem"],
            "the certificate c.pem and its key k.pem cannot be used: No",
            2,
        ),
        (["--tls-cert", "file", "--tls-key", "file"], "the certificate file and its key file cannot be used: ", 2),
    ],
)
def test_place_that_cannot_be_used_is_named(tmp_path: Path, arguments: list[str], told: str, status: int) -> None:
    (tmp_path / "file").write_text("of another program\n")
    ran = start(tmp_path, "--port", "0", *arguments)
    assert ran.returncode == status
    (line,) = ran.stderr.splitlines()
    assert line.startswith("error: ")
    assert told in line
    assert ran.stdout == ""
    assert (tmp_path / "file").read_text() == "of another program\n"


def test_long_recovery_says_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    async def recover() -> str:
        over = asyncio.Event()
        seen: list[str] = []

        def said() -> str:
            seen.append(f"{len(seen)} of 3")
            if len(seen) == 3:
                over.set()
            return seen[-1]

        async def work() -> str:
            await over.wait()
            return "recovered"

        return await told_meanwhile(work(), said, every_s=0.001)

    assert asyncio.run(recover()) == "recovered"
    assert capsys.readouterr().err.splitlines()[:3] == ["0 of 3", "1 of 3", "2 of 3"]
