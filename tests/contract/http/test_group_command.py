"""`topics group` against a server."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

import topics
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
    group("seek", topic, "g", "nowhere", "--force", status=2)
    assert group("seek", topic, "g", "7", "--force")[0]["to"] == 7
    group("ack", topic, "g", "x", status=2)
    group("info", topic, status=2)
    assert group("delete", topic, "g")[0]["deleted"] is True
    group("info", topic, "g", status=1)


def test_a_group_is_exported_from_the_files_of_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def export() -> list[Any]:
        assert run(["group", "export", "t", "g", "--directory", str(tmp_path), "--json"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    with topics.open(str(tmp_path)) as log:
        log.create("t", durability="fsync")
        log.append("t", [{"data": n} for n in range(4)])
        group = log.group("t", "g")
        group.create(visibility_ms=60_000)
        group.fetch("m", max=3)
        group.ack("m", [1])
        group.nack("m", [2])
        group.seek({"seq": 2}, force=True)
        lines = export()
        assert [line["op"] for line in lines] == ["put", "join", "deliver_batch", "ack", "nack", "set_cursor"]
        assert [line["n"] for line in lines] == [1, 2, 3, 4, 5, 6]
        for line in lines:
            assert line.pop("crc") == zlib.crc32(msgspec.json.encode(line))
        group.fetch("m", max=1)
    saved = export()
    assert [(line["kind"], line.get("$seq"), line.get("position")) for line in saved] == [
        ("state", None, 3),
        ("pending", 2, None),
    ]
