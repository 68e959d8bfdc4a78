"""Many watchers at once: each gets every record once and in order, and writers do not notice them."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from typing import Any

import pytest
import uvloop

from tests.integration.live.sse import Listening, Place, listen


async def crowd(place: Place, urls: list[str]) -> list[Listening]:
    host, port = place.server.host, place.server.port
    return [await listen(host, port, url) for url in urls]


async def appended(place: Place, topic: str, *data: int) -> None:
    answer = await asyncio.to_thread(place.api.append, topic, *data)
    assert answer.status == 200


@pytest.mark.parametrize("count", [1, 100, 1000])
def test_every_watcher_gets_every_record_in_order(place: Place, count: int) -> None:
    topic = f"crowd-{count}"
    place.api.append(topic, *range(5))
    urls = [place.session({topic: {"tail": True}}) for _ in range(count)]

    async def run() -> None:
        watchers = await crowd(place, urls)
        await asyncio.gather(*(watcher.until(lambda w: w.caught_up) for watcher in watchers))
        head = 5
        for size in (1, 3, 1, 20, 1):
            await appended(place, topic, *range(size))
            head += size
        await asyncio.gather(*(watcher.until(lambda w: w.seqs and w.seqs[-1] == head) for watcher in watchers))
        for watcher in watchers:
            assert watcher.seqs == list(range(6, head + 1))
            watcher.transport.abort()

    uvloop.run(asyncio.wait_for(run(), 120))


def test_watchers_with_views_of_their_own_each_get_theirs(place: Place) -> None:
    rng = random.Random(7)
    nodes = ["n0", "n1", "n2"]
    views: list[dict[str, Any]] = [
        {"limit": rng.choice((1, 7, 256)), "node": rng.sample(nodes, rng.randrange(3)), "topics": {"views": {}}}
        for _ in range(60)
    ]
    place.api.put("views")
    urls = [place.session(**view) for view in views]
    sent = [rng.choice(nodes) for _ in range(200)]

    async def run() -> None:
        watchers = await crowd(place, urls)
        for start in range(0, 200, 10):
            batch = [{"data": start, "node": node} for node in sent[start : start + 10]]
            await asyncio.to_thread(place.api.append, "views", *batch)
        for view, watcher in zip(views, watchers, strict=True):
            wanted = [seq for seq, node in enumerate(sent, 1) if node not in view["node"]]
            await watcher.until(lambda w, wanted=wanted: len(w.seqs) >= len(wanted))
            assert watcher.seqs == wanted
            watcher.transport.abort()

    uvloop.run(asyncio.wait_for(run(), 120))


def test_session_of_many_topics_names_them_all_in_each_id(place: Place) -> None:
    names = [f"many-{number:03}" for number in range(256)]
    for name in names:
        place.api.append(name, 1)
    refused = place.api.call("POST", "/v0/watch", {"topics": {name: {} for name in [*names, "many-256"]}})
    assert refused.problem == (400, "invalid_request")
    with place.watch({name: {} for name in names}) as reader:
        for name in names:
            event = reader.named()
            assert (event.event, event.data["topic"]) == ("record", name)
            assert reader.named().event == "caught-up"
        place.api.append("many-128", 2)
        event = reader.named()
    padded = event.id + "=" * (-len(event.id) % 4)
    cursors = json.loads(base64.urlsafe_b64decode(padded))
    assert cursors == {name: 2 if name == "many-128" else 1 for name in names}
    assert list(cursors) == sorted(cursors)


def test_streams_of_one_session_share_the_work(place: Place) -> None:
    place.api.put("shared")
    url = place.session({"shared": {}})

    async def run() -> None:
        first, second = await crowd(place, [url, url])
        for number in range(50):
            await appended(place, "shared", number)
        while len(first.seqs) + len(second.seqs) < 50:
            await asyncio.sleep(0.01)
        assert sorted(first.seqs + second.seqs) == list(range(1, 51))
        first.transport.abort()
        second.transport.abort()

    uvloop.run(asyncio.wait_for(run(), 120))
