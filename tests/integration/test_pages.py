"""What the README and the guides show runs as it stands and prints what they say."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.http.live import ServerProcess
from tests.integration.pages import ROOT, Shell, check, masked, replaced, snippets
from topics.client import Client

pytestmark = pytest.mark.skipif(
    shutil.which("curl") is None or shutil.which("bash") is None, reason="the pages are typed into bash, and use curl"
)

URL = "http://127.0.0.1:4000"
GUIDES = ("docs/guides/topics.md", "docs/guides/queues.md", "docs/guides/groups.md", "docs/guides/embedded.md")


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One for all pages."""
    process = ServerProcess(tmp_path_factory.mktemp("pages"))
    process.shared = True
    yield process
    process.kill()


@pytest.fixture
def server(started: ServerProcess) -> Iterator[ServerProcess]:
    yield started
    with Client(f"http://127.0.0.1:{started.port}") as client:
        for topic in list(client.topics()):
            client.drop(topic.topic)


@pytest.mark.parametrize("page", GUIDES)
def test_the_snippets_of_a_guide_print_what_it_says(page: str, server: ServerProcess, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{server.port}"
    check(page, tmp_path, {URL: url}, TOPICS_URL=url)


def test_the_commands_of_the_readme_are_answered_as_it_says(server: ServerProcess, tmp_path: Path) -> None:
    names = {URL: f"http://127.0.0.1:{server.port}"}
    blocks = [one for one in snippets("README.md") if one.language == "sh" and "make " not in one.code]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    inline = [" ".join(one.split()) for one in re.findall(r"`(curl\s[^`]+)`", text)]
    assert len(blocks) == 2
    assert len(inline) == 7
    with contextlib.closing(Shell(tmp_path)) as shell:
        for block in blocks:
            printed = shell.run(replaced(block.code, names))
            assert block.prints is not None
            assert [line for line in masked(block.prints).splitlines() if line not in masked(printed)] == []
        shell.run("""curl -X PUT $T/jobs -H "$J" -d '{"type":"queue"}'; curl -X PUT $T/orders/groups/billing -o made""")
        for command in inline:
            printed = shell.run(replaced(command, names))
            assert printed.strip()
            assert '"error"' not in printed, command
