"""The pages for operators run as they stand, on a server of their own, and print what they say."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import pages
from tests.integration.pages import ROOT

pytestmark = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("bash", "curl", "openssl")),
    reason="the pages are typed into bash, and use curl and openssl",
)

SYSTEMCTL = Path(__file__).with_name("systemctl.py")
SHARDS = "2"
"""On every machine, because a page names the file of a shard."""
RUNNING = "docs/operating/running.md"
PAGES = [
    name
    for path in sorted((ROOT / "docs" / "operating").glob("*.md"))
    if pages.snippets(name := str(path.relative_to(ROOT)))
]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


class Machine:
    """Folders that stand for those of a real one, and a systemctl."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        root, port = folder / "machine", free_port()
        self.units = root / "units"
        for place in ("etc", "var", "backup", "units", "tools"):
            (root / place).mkdir(parents=True)
        self.replaced = {
            "/etc/systemd/system": str(self.units),
            "/opt/topics/.venv/bin/topics": f"{sys.executable} -m topics.cli.main",
            "/etc/topics": str(root / "etc"),
            "/var/lib/topics": str(root / "var" / "topics"),
            "/var/backups": str(root / "backup"),
            "127.0.0.1:4000": f"127.0.0.1:{port}",
            "localhost:4000": f"localhost:{port}",
            "port = 4000": f"port = {port}",
        }
        self.url = f"http://127.0.0.1:{port}"
        self.path = root / "tools"
        command = self.path / "systemctl"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{SYSTEMCTL}" "$@"\n')
        command.chmod(0o755)

    def set_up(self) -> None:
        """As docs/operating/running.md says, without keys."""
        for snippet in pages.snippets(RUNNING):
            if snippet.language in ("ini", "toml"):
                pages.write_file(pages.replaced(snippet.code, self.replaced))
        (self.units.parent / "etc" / "keys.env").write_text(f"TOPICS_WAL_SHARDS={SHARDS}\n")

    @property
    def variables(self) -> dict[str, str]:
        return {
            "PATH": f"{self.path}:{os.environ['PATH']}",
            "UNITS": str(self.units),
            "TOPICS_URL": self.url,
            "TOPICS_WAL_SHARDS": SHARDS,
            "TOPICS_PORT": self.url.rpartition(":")[2],
        }

    def end(self) -> None:
        if not (self.units / "pid").exists():
            return
        environ = {**os.environ, **self.variables}
        subprocess.run([sys.executable, str(SYSTEMCTL), "stop"], env=environ, check=True)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize("page", PAGES)
def test_the_snippets_of_a_page_for_operators_print_what_it_says(page: str, machine: Machine) -> None:
    if page != RUNNING:
        machine.set_up()
    pages.check(page, machine.home, machine.replaced, **machine.variables)
