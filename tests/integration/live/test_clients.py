"""`watch` of both clients, and of the command line, against a real server that goes away and comes back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.contract.http.live import ServerProcess
from tests.integration.live.sse import Place
from topics.client import AsyncClient, Client
from topics.client.watching import Watched
from topics.model.errors import TopicNotFound
from topics.model.record import Gap, Record


def url_of(place: Place) -> str:
    return f"http://{place.server.host}:{place.server.port}"


def test_sync_watch_gives_records_and_gaps_until_the_topic_is_dropped(place: Place) -> None:
    place.api.put("client-sync", cap_records=3)
    place.api.append("client-sync", *range(5))
    items: list[Watched] = []
    with Client(url_of(place)) as client:
        for watched in client.watch("client-sync"):
            items.append(watched)
            if isinstance(watched.item, Record) and watched.item.seq == 5:
                place.api.append("client-sync", "more")
            elif isinstance(watched.item, Record) and watched.item.seq == 6:
                place.api.call("DELETE", "/v0/topics/client-sync")
        with pytest.raises(TopicNotFound):
            next(client.watch("client-sync"))
    assert isinstance(items[0].item, Gap)
    assert [item.seq for _, item in items[1:] if isinstance(item, Record)] == [3, 4, 5, 6]


def test_watched_records_have_their_keys(place: Place) -> None:
    place.api.append("client-keys", {"data": 1, "key": "k"}, {"data": 2})
    with Client(url_of(place)) as client:
        found = [next(client.watch("client-keys", **asked)).item for asked in ({}, {"include_keys": False})]
    assert [item.key for item in found if isinstance(item, Record)] == ["k", None]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_watch_goes_on_when_the_server_was_killed_and_started_again(tmp_path: Path, kind: str) -> None:
    place = Place(ServerProcess(tmp_path))
    place.api.put("again", durability="fsync")
    url, port = url_of(place), str(place.server.port)
    seen: list[int] = []
    at = {10: threading.Event(), 20: threading.Event()}

    def note(watched: Watched) -> bool:
        assert isinstance(watched.item, Record)
        seen.append(watched.item.seq)
        if len(seen) in at:
            at[len(seen)].set()
        return len(seen) == 30

    def read_sync() -> None:
        with Client(url) as client:
            for watched in client.watch({"again": 0}):
                if note(watched):
                    return

    async def read_async() -> None:
        async with AsyncClient(url) as client:
            stream = client.watch({"again": 0})
            async for watched in stream:
                if note(watched):
                    break
            await stream.aclose()  # type: ignore[attr-defined]

    reader = threading.Thread(target=read_sync if kind == "sync" else lambda: asyncio.run(read_async()))
    reader.start()
    place.api.append("again", *range(10))
    assert at[10].wait(20)
    place.close()
    place.server.kill()
    place = Place(ServerProcess(tmp_path, TOPICS_PORT=port))
    place.api.append("again", *range(10))
    assert at[20].wait(20)
    place.close()
    assert place.server.stop()[0] == 0
    place = Place(ServerProcess(tmp_path, TOPICS_PORT=port))
    place.api.append("again", *range(10))
    reader.join(20)
    place.close()
    assert place.server.stop()[0] == 0
    assert not reader.is_alive()
    assert seen == list(range(1, 31))


def test_command_line_prints_what_is_written(place: Place) -> None:
    place.api.append("cli-a", {"data": {"id": 1}, "tag": "eu"})
    place.api.append("cli-b", "two")
    command = [sys.executable, "-m", "topics.cli.main", "watch", "cli-a", "cli-b", "--from-seq", "0", "--limit", "3"]
    process = subprocess.Popen([*command, "--url", url_of(place)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline(), process.stdout.readline()]
    place.api.append("cli-a", 3)
    out, _ = process.communicate(timeout=120)
    lines += out.splitlines()
    assert process.returncode == 0
    assert lines[0].startswith("cli-a 1 ")
    assert lines[0].rstrip().endswith('tag=eu {"id":1}')
    assert lines[1].rstrip().endswith('"two"')
    assert lines[2].startswith("cli-a 2 ")
