"""`topics group` against a server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract.http.live import ServerProcess
from topics.cli.main import run
from topics.client import Client


def test_groups_are_worked_from_the_command_line(
    live_server: ServerProcess, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://{live_server.host}:{live_server.port}"

    def group(*arguments: str, status: int = 0) -> list[Any]:
        assert run(["group", *arguments, "--url", url, "--json"]) == status
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    with Client(url) as client:
        client.append(topic, [{"data": n} for n in range(1, 8)])
    assert group("create", topic, "g", "visibility_ms=60000")[0]["created"] is True
    fetched = group("fetch", topic, "g", "--member", "me", "--max", "5")
    assert [(row["$seq"], row["delivery"]["count"]) for row in fetched] == [(n, 1) for n in range(1, 6)]
    assert group("ack", topic, "g", "1", "3-4", "--member", "me")[0]["acked"] == 3
    assert group("info", topic, "g")[0]["committed"] == 2
    assert [row["group"] for row in group("list", topic)] == ["g"]
    exported = group("export", topic, "g")
    assert [(row["kind"], row.get("$seq")) for row in exported] == [("state", None), ("pending", 2), ("pending", 5)]
    assert group("seek", topic, "g", "latest", "--dry-run")[0]["skipped"] == 2
    group("seek", topic, "g", "latest", status=1)
    group("seek", topic, "g", "nowhere", "--force", status=1)
    assert group("seek", topic, "g", "7", "--force")[0]["to"] == 7
    group("ack", topic, "g", "x", status=1)
    group("info", topic, status=1)
    assert group("delete", topic, "g")[0]["deleted"] is True
    group("info", topic, "g", status=1)
