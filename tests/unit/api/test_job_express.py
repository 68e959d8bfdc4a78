"""Claims and acks by express: the answers of the usual way, one write for all that came in one turn of the loop."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.api.test_express import Link, Place, asked, in_place, overtake, posted
from topics.api.app import AppOptions
from topics.api.auth import parse_keys
from topics.api.jobs import JobConvoy
from topics.storage.leasing import queue_of

DEADLINE = re.compile(rb'"deadlines?":(\d+|\{[^}]*\})')


def claimed(node: str, most: int = 2, name: str = "q", *headers: bytes) -> bytes:
    return asked("POST", f"/v0/topics/{name}/claim", b'{"node":"%b","max":%d}' % (node.encode(), most), *headers)


def acked(node: str, seqs: list[int], ids: list[int] | None = None, name: str = "q", *headers: bytes) -> bytes:
    body = '{"node":"%s","seqs":%s,"lease_ids":[%s]}'
    listed = ",".join(f'"lease_{number:x}"' for number in ids or ())
    return asked("POST", f"/v0/topics/{name}/ack", (body % (node, seqs, listed)).encode(), *headers)


JOBS = b'{"records":[%b]}' % b",".join(b'{"data":%d,"node":"n","tag":"t"}' % number for number in range(6))

REQUESTS = (
    claimed("a", 1),
    claimed("a", 3),
    claimed("b", 2),
    claimed("b", 2, "log"),
    claimed("b", 2, "none"),
    claimed("b", 4, "letters"),
    claimed("b", 4, "jitter"),
    claimed("b", 4, "loose"),
    claimed("", 4),
    claimed("a", 1, "q", b"accept-encoding: gzip"),
    acked("a", [1]),
    acked("a", [1, 2, 3], [1, 2, 3]),
    acked("a", [2, 1]),
    acked("b", [4, 5]),
    acked("b", [4, 5], [4, 6]),
    acked("b", [4], [4], "q", b"accept-encoding: gzip"),
    acked("a", [3, 3]),
    acked("a", []),
    acked("a", [99]),
    acked("a", [1], [1, 2]),
    acked("b", [1, 2], None, "letters"),
    acked("b", [1], None, "loose"),
    asked("POST", "/v0/topics/q/ack", b'{"node":"a","seqs":[1],"lease_ids":["lease_"]}'),
    asked("POST", "/v0/topics/q/nack", b'{"node":"a","seqs":[1,2]}'),
    asked("POST", "/v0/topics/letters/nack", b'{"node":"b","seqs":[1,2]}'),
    asked("POST", "/v0/topics/q/extend", b'{"node":"a","seqs":[1,2],"lease_ms":5000}'),
    asked("POST", "/v0/topics/q/delete", b'{"seqs":[2,4]}'),
    posted("q", JOBS),
    posted("letters", JOBS),
    posted("loose", JOBS),
)
TOPICS = {
    "q": b'{"type":"queue","durability":"fsync"}',
    "letters": b'{"type":"queue","durability":"disk","max_deliveries":1,"dead_letter":"dead"}',
    "jitter": b'{"type":"queue","claim_jitter_ms":1}',
    "loose": b'{"type":"queue","durability":"ephemeral"}',
    "log": b"{}",
}


async def made(place: Place) -> Link:
    link = place.link()
    for name, config in TOPICS.items():
        link.send(asked("PUT", f"/v0/topics/{name}", config))
    for name in ("q", "letters", "loose", "jitter"):
        link.send(posted(name, JOBS))
    await link.all()
    return link


async def warmed(place: Place, count: int) -> list[Link]:
    """Connections over which claims of two jobs, and acks of two, go by express from now on; all jobs are fresh."""
    maker = await made(place)
    links = [place.link() for _ in range(count)]
    for link in links:
        for request in (claimed("w", 2), acked("w", [8, 9], [8, 9])):
            link.send(request)
            await link.all()
    maker.send(asked("DELETE", "/v0/topics/q", b""), asked("PUT", "/v0/topics/q", TOPICS["q"]))
    for _ in range(4):
        maker.send(posted("q", JOBS))
    await maker.all()
    return links


def seqs_of(answer: bytes) -> list[int]:
    return [int(seq) for seq in re.findall(rb'"\$seq":(\d+)', answer)]


def tokens_of(answer: bytes) -> list[int]:
    return [int(token, 16) for token in re.findall(rb'"lease_([0-9a-f]+)"', answer)]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=16))
def test_express_gives_the_answers_of_the_usual_way(
    tmp_path_factory: pytest.TempPathFactory, requests: list[bytes]
) -> None:
    found = []
    for express in (True, False):

        async def body(place: Place, express: bool = express) -> None:
            if not express:
                place.app._terminal.station = None
            link = await made(place)
            for request in requests:
                for _ in range(2):  # the second time its head is known
                    link.send(request)
                    await link.all()
            link.send(asked("GET", "/v0/topics/q", b""), asked("GET", "/v0/topics/letters", b""))
            found.append([DEADLINE.sub(b"", answer) for answer in await link.all()])

        in_place(tmp_path_factory.mktemp("express"), body)
    assert found[0] == found[1]


def test_claims_of_one_turn_share_one_write_and_are_dealt_in_their_order(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        links = await warmed(place, 5)
        before = place.writes
        for link in links:
            link.send(claimed("w", 2))
        answers = [(await link.all())[-1] for link in links]
        assert [seqs_of(answer) for answer in answers] == [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]
        tokens = [token for answer in answers for token in tokens_of(answer)]
        assert len(set(tokens)) == 10
        assert all(b'"ready":14,' in answer and b'"$node"' not in answer for answer in answers)
        assert place.writes == before + 1

    in_place(tmp_path / "s", body)


def test_claims_get_what_a_router_has_for_their_queue(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        link = place.link()
        link.send(asked("PUT", "/v0/topics/q", TOPICS["q"]))
        link.send(asked("PUT", "/v0/routers/r", b'{"source":"s","dest":"q"}'))
        for _ in range(3):  # from the second one on its head is known
            for request in (posted("s", b'{"records":[{"data":1}]}'), claimed("w", 2)):
                link.send(request)
                answers = await link.all()
        assert [seqs_of(answer) for answer in answers[3::2]] == [[1], [2], [3]]

    in_place(tmp_path / "s", body)


def test_convoy_of_jobs_may_be_asked_to_write_as_soon_as_it_is_ordered(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        links = await warmed(place, 2)
        await overtake(place, links, [claimed("w", 2)] * 2)
        await overtake(place, links, [acked("w", [1, 2]), acked("w", [3, 4])])

    in_place(tmp_path / "s", body)


def test_acks_of_one_turn_share_one_write_and_last(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        links = await warmed(place, 5)
        for link in links:
            link.send(claimed("w", 2))
        held = [(seqs_of(answer), tokens_of(answer)) for link in links for answer in (await link.all())[-1:]]
        before = place.writes
        for link, (seqs, tokens) in zip(links, held, strict=True):
            link.send(acked("w", seqs, tokens))
        for link in links:
            assert b'"acked":2,"skipped":[],"why":{},"ready":14,"in_flight":0,' in (await link.all())[-1]
        assert place.writes == before + 1

    async def again(place: Place) -> None:
        topic = place.store.topics["q"]
        assert (topic.live, topic.dead.next_live(1, 99)) == (14, 11)
        assert not queue_of(topic).leases.entries

    in_place(tmp_path / "s", body)
    in_place(tmp_path / "s", again)


def test_one_job_acked_twice_in_one_turn_is_acked_once(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        first, second, third = await warmed(place, 3)
        first.send(claimed("w", 2))
        tokens = tokens_of((await first.all())[-1])
        for link in (first, second, third):
            link.send(acked("w", [1, 2], tokens))
        assert b'"acked":2,' in (await first.all())[-1]
        for link in (second, third):
            assert b'"acked":0,"skipped":[1,2],"why":{"1":"settled","2":"settled"}' in (await link.all())[-1]

    in_place(tmp_path / "s", body)


def test_pipelined_claims_and_acks_are_answered_in_their_order(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        (link,) = await warmed(place, 1)
        known = len(link.answers)
        for request in (claimed("w", 2), claimed("w", 2), acked("w", [1, 2]), claimed("w", 2), acked("w", [3, 4])):
            link.send(request)
        answers = (await link.all())[known:]
        assert [seqs_of(answer) for answer in answers] == [[1, 2], [3, 4], [], [5, 6], []]
        assert all(b'"acked":2,' in answers[at] for at in (2, 4))

    in_place(tmp_path / "s", body)


def test_an_empty_queue_is_answered_without_a_write(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        links = await warmed(place, 2)
        for _ in range(7):
            for link in links:
                link.send(claimed("w", 2))
            for link in links:
                await link.all()
        before = place.writes
        for link in links:
            link.send(claimed("w", 2))
        for link in links:
            assert b'"claimed":[],"count":0,"ready":0,' in (await link.all())[-1]
        assert place.writes == before

    in_place(tmp_path / "s", body)


def test_a_failed_write_is_told_to_every_rider(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        links = await warmed(place, 3)
        file = place.store.shards[place.store.topics["q"].shard].file
        assert file is not None
        file.file.close()
        for _ in range(2):  # the second time the shard is known to be read-only
            for link in links:
                link.send(claimed("w", 2))
            for link in links:
                assert (await link.all())[-1][9:12] in (b"500", b"503")
        assert not queue_of(place.store.topics["q"]).leases.entries

    in_place(tmp_path / "s", body)


def test_a_mistake_of_our_own_is_told_to_every_rider_and_tried_by_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a mistake")

    async def body(place: Place) -> None:
        links = await warmed(place, 3)
        for step in ("_order", "_answers"):
            for kind in JobConvoy.__subclasses__():
                monkeypatch.setattr(kind, step, broken)
            for link in links:
                link.send(claimed("w", 2))
            for link in links:
                assert (await link.all())[-1].startswith(b"HTTP/1.1 500 ")
            monkeypatch.undo()
        assert len(queue_of(place.store.topics["q"]).leases.entries) == 6, "claimed, and not told: they run out"

    in_place(tmp_path / "s", body)
    assert caplog.text.count("RuntimeError: a mistake") == 2


def test_slots_of_a_key_are_held_by_express_and_given_back(tmp_path: Path) -> None:
    options = AppOptions(keyring=parse_keys("secret"), max_inflight_per_key=2)
    key = b"authorization: Bearer secret"

    async def body(place: Place) -> None:
        maker = place.link()
        maker.send(asked("PUT", "/v0/topics/q", TOPICS["q"], key), posted("q", JOBS, key))
        await maker.all()
        links = [place.link() for _ in range(3)]
        for _ in range(3):
            for link in links:
                link.send(claimed("w", 2, "q", key))
                await link.all()
            for link in links:
                link.send(claimed("w", 2, "q", key))
            assert [(await link.all())[-1][9:12] for link in links] == [b"200", b"200", b"429"]

    in_place(tmp_path / "s", body, options)


def test_large_answers_are_coded_as_the_client_accepts_it(tmp_path: Path) -> None:
    large = b'{"records":[%b]}' % b",".join([b'{"data":"%b"}' % (b"x" * 30_000)] * 4)

    async def body(place: Place) -> None:
        (link,) = await warmed(place, 1)
        link.send(posted("q", large))
        await link.all()
        for first, last in ((1, 9), (10, 18), (19, 27), (28, 28)):  # from the second on its head is known
            link.send(claimed("w", 9, "q", b"accept-encoding: gzip"))
            await link.all()
            head, _, packed = link.answers[-1].partition(b"\r\n\r\n")
            assert b"content-encoding: gzip" in head
            assert seqs_of(zlib.decompress(packed, 31)) == list(range(first, last + 1))
        link.send(claimed("w", 1, "q", b"accept-encoding: gzip"))
        assert b'"count":0,' in (await link.all())[-1]

    in_place(tmp_path / "s", body)
