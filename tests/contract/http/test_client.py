"""The same contract through our own client."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.contract.http.live import ServerProcess
from topics.client import AsyncClient, Client
from topics.model.errors import (
    GroupHasMembers,
    GroupNotFound,
    InvalidRequest,
    NotAQueue,
    NotFound,
    PartExists,
    PartMissing,
    Recreated,
    StaleGeneration,
    TopicFull,
    TopicNotEmpty,
    TopicNotFound,
    TxnForeign,
)
from topics.model.record import Gap, Record


@pytest.fixture
def client(live_server: ServerProcess) -> Iterator[Client]:
    with Client(f"http://{live_server.host}:{live_server.port}") as client:
        yield client


def test_topics_are_made_changed_listed_and_dropped(client: Client, topic: str) -> None:
    assert client.create(topic, durability="fsync").created is True
    assert client.configure(topic, cap_records=5).config.cap_records == 5
    assert client.info(topic).config.durability == "fsync"
    assert topic in [row.topic for row in client.topics(prefix=topic)]
    client.append(topic, [{"data": 1}])
    with pytest.raises(TopicNotEmpty):
        client.drop(topic, if_empty=True)
    assert client.drop(topic).deleted is True
    with pytest.raises(TopicNotFound):
        client.info(topic)


def test_records_go_in_and_come_out(client: Client, topic: str) -> None:
    done = client.append(topic, [{"data": {"n": number}, "tag": "t", "key": "k"} for number in range(10)])
    assert (done.first_seq, done.last_seq, done.created) == (1, 10, True)
    assert client.append_ndjson(topic, b'{"data":10}\n{"data":11}\n').count == 2
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, pa.schema([("data", pa.utf8())])) as writer:
        writer.write_table(pa.table({"data": ["12"]}))
    assert client.append_arrow(topic, sink.getvalue()).last_seq == 13
    batch = client.diff(topic, limit=5)
    assert [record.seq for record in batch.records] == [1, 2, 3, 4, 5]
    assert len([item for item in client.read(topic) if isinstance(item, Record)]) == 13
    assert [item.seq for item in client.records(topic, from_seq=12) if isinstance(item, Record)] == [12, 13]
    assert [item.seq for item in client.records_page(topic, key="k").items if isinstance(item, Record)][-1] == 10
    table = pa.ipc.open_stream(io.BytesIO(b"".join(client.records_arrow(topic)))).read_all()
    assert table.num_rows == 14
    assert client.delete(topic, tag="t").deleted == 10


def test_loss_comes_as_a_gap(client: Client, topic: str) -> None:
    client.create(topic, cap_records=2)
    client.append(topic, [{"data": number} for number in range(5)])
    items = list(client.read(topic))
    assert items[0] == Gap(1, 3, "cap")
    with client.records(topic, from_seq=1) as stream:
        assert isinstance(next(stream), Gap)


def test_errors_come_as_their_own_classes(client: Client, topic: str) -> None:
    client.create(topic, discard="reject", cap_records=1)
    client.append(topic, [{"data": 1}])
    with pytest.raises(TopicFull) as full:
        client.append(topic, [{"data": 2}])
    assert full.value.facts["head_seq"] == 1
    with pytest.raises(InvalidRequest):
        client.create("not a name!")
    with pytest.raises(Recreated):
        client.records_page(topic, epoch=99_999)


def test_records_of_a_key_are_understood(client: Client, topic: str) -> None:
    client.append(topic, [{"data": 1, "key": "a/b c"}, {"data": 2, "key": "a/b c", "tag": "t"}, {"data": 3}])
    newest = client.latest(topic, "a/b c")
    assert newest is not None
    assert (newest.seq, newest.data, newest.key, newest.tag) == (2, 2, "a/b c", "t")
    assert client.latest(topic, "nobody") is None
    page = client.key_history(topic, "a/b c", limit=1)
    rest = client.key_history(topic, "a/b c", from_seq=page.next_from_seq)
    assert [item.data for item in (*page.items, *rest.items) if isinstance(item, Record)] == [1, 2]


def test_segments_heads_and_probes_are_understood(client: Client, topic: str) -> None:
    client.append(topic, [{"data": 1}])
    assert client.heads({topic: 1}).topics[topic].head_seq == 1
    listed = client.segments(topic)
    assert (listed.head_seq, listed.tail and listed.tail.to_seq) == (1, 2)
    assert client.health().status == "ok"
    assert client.ready().topics >= 1
    assert "topics_topics" in client.metrics()
    assert client.metrics_json()["ready"] is True
    assert client.stats(topic)["by_topic"][0]["topic"] == topic
    assert client.openapi()["openapi"].startswith("3.1")


def test_parts_are_staged_and_committed(client: Client, topic: str) -> None:
    first = client.stage(topic, "app@1", "p0", [{"data": 1, "tag": "t"}, {"data": 2}])
    assert (first.count, first.committed) == (2, False)
    assert client.stage_ndjson(topic, "app@1", "p1", b'{"data":3}\n').count == 1
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, pa.schema([("data", pa.utf8())])) as writer:
        writer.write_table(pa.table({"data": ["4"]}))
    assert client.stage_arrow(topic, "app@1", "p2", sink.getvalue()).count == 1
    assert [part.part for part in client.staged_txn(topic, "app@1").parts] == ["p0", "p1", "p2"]
    with pytest.raises(PartExists):
        client.stage(topic, "app@1", "p0", [{"data": 9}])
    with pytest.raises(PartMissing):
        client.commit_staged(topic, "app@1", ["p9"])
    done = client.commit_staged(topic, "app@1", ["p0", "p2"], query="q")
    assert (done.first_seq, done.last_seq, done.repeated) == (1, 3, False)
    assert client.commit_staged(topic, "app@1", []).repeated is True
    with pytest.raises(TxnForeign):
        client.commit_staged(topic, "app@2", [], query="another")
    assert client.stage(topic, "app@1", "late", [{"data": 5}]).committed is True
    assert client.abort_staged(topic, "app@1").state == "committed"
    assert [item.raw for item in client.read(topic) if isinstance(item, Record)] == [b"1", b"2", b"4"]
    assert [(txn.txn, txn.state) for txn in client.staged(topic)] == [("app@1", "committed")]


def test_several_topics_are_committed_at_once(client: Client, topic: str) -> None:
    names = [f"{topic}.a", f"{topic}.b"]
    for name in names:
        client.stage(name, "t1", "p0", [{"data": name}])
    done = client.commit_staged_topics("t1", {name: ["p0"] for name in names})
    assert [done.topics[name].first_seq for name in names] == [1, 1]
    assert client.commit_staged_topics("t1", {name: [] for name in names}).repeated is True
    client.stage(names[0], "t2", "p0", [{"data": 0}], create=False)
    assert client.abort_staged(names[0], "t2").aborted is True
    with pytest.raises(NotFound):
        client.staged_txn(names[0], "t2")


def test_workers_share_a_queue(client: Client, topic: str) -> None:
    client.create(topic, type="queue", max_deliveries=1, dead_letter=f"{topic}.dead")
    client.append(topic, [{"data": {"n": n}, "meta": {"m": n}} for n in range(3)] + [{"data": 9, "delay_ms": 60_000}])
    queue = client.queue(topic)
    one, two, three = queue.claim("w", max=9, lease_ms=60_000)
    assert (one.seq, one.data, one.meta, one.deliveries, one.lease_id) == (1, {"n": 0}, {"m": 0}, 1, "lease_1")
    assert queue.ack("w", [one]).done == 1
    assert queue.ack("w", [one, 77]).why == {1: "settled", 77: "unknown"}
    assert set(queue.extend("w", [two, three], 90_000).deadlines) == {2, 3}
    assert queue.nack("w", [two]).done == 1
    assert queue.claim("w") == [], "it went to the dead letters"
    assert client.queue(f"{topic}.dead").redrive(dry_run=True).moved == 1
    assert client.queue(f"{topic}.dead").redrive().moved == 1
    assert [job.data for job in queue.claim("w")] == [{"n": 1}]
    with pytest.raises(NotAQueue):
        client.queue(f"{topic}.dead").claim("w")


async def _claim_and_ack(url: str, topic: str) -> int:
    async with AsyncClient(url) as client:
        queue = client.queue(topic)
        jobs = await queue.claim("w", max=2)
        await queue.extend("w", jobs, 60_000)
        await queue.nack("w", jobs[1:])
        return (await queue.ack("w", jobs)).done


def test_async_workers_do_the_same(client: Client, live_server: ServerProcess, topic: str) -> None:
    client.create(topic, type="queue")
    client.append(topic, [{"data": 1}, {"data": 2}])
    assert asyncio.run(_claim_and_ack(f"http://{live_server.host}:{live_server.port}", topic)) == 1


def test_a_group_is_worked_in_through_the_client(client: Client, topic: str) -> None:
    client.append(topic, [{"data": n, "tag": "t"} for n in range(1, 6)])
    group = client.group(topic, "g")
    assert group.create(visibility_ms=60_000, dead_letter=f"{topic}.dead").created is True
    joined = group.join("m")
    assert group.heartbeat("m", joined.generation).generation == joined.generation
    fetched = group.fetch("m", max=4, generation=joined.generation)
    assert [(item.seq, item.record.tag, item.delivery and item.delivery.count) for item in fetched.records] == [
        (1, "t", 1), (2, "t", 1), (3, "t", 1), (4, "t", 1),
    ]  # fmt: skip
    assert (fetched.gap, fetched.cursor, fetched.committed, fetched.next_seq) == (None, 5, 1, None)
    assert group.ack("m", [1]).acked == 1
    assert group.ack("m", ranges=[(2, 2)]).committed == 3
    assert group.ack("other", [3]).why == {3: "member"}
    assert list(group.extend("m", [3], 70_000).deadlines) == [3]
    assert group.nack("m", [3], delay_ms=0).nacked == 1
    assert group.reject("m", [4], reason="no").rejected == 1
    assert [item.seq for item in group.claim("c", 0).records] == [3]
    assert [(row.seq, row.member) for row in group.pending()] == [(3, "c")]
    info = group.info()
    assert (info.pending, info.dead_lettered, info.lag.records) == (1, 1, 3)
    assert [found.group for found in client.groups(topic)] == ["g"]
    with pytest.raises(GroupHasMembers):
        group.seek("earliest")
    assert group.seek({"seq": 2}, force=True).to == 2
    with pytest.raises(StaleGeneration):
        group.leave("m", joined.generation + 1)
    assert group.leave("m").generation == joined.generation
    assert group.drop().deleted is True
    with pytest.raises(GroupNotFound):
        group.info()


def test_a_stream_group_commits_through_the_client(client: Client, topic: str) -> None:
    client.append(topic, [{"data": 1}, {"data": 2}])
    group = client.group(topic, "s")
    group.create(mode="stream")
    fetched = group.fetch("m", wait_ms=1)
    assert ([item.delivery for item in fetched.records], fetched.next_seq) == ([None, None], 3)
    assert group.commit(3).committed == 3
