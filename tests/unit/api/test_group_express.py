"""Fetches and acks of a group by express: the answers of the usual way, one write for what came in one turn."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.api.test_express import Link, Place, asked, in_place, overtake, posted
from tests.unit.api.test_job_express import DEADLINE, JOBS, seqs_of
from topics.host.clock import SystemClock


def fetched(member: str, most: int = 2, group: str = "g", more: str = "", topic: str = "t") -> bytes:
    body = f'{{"member":"{member}","max":{most}{more}}}'
    return asked("POST", f"/v0/topics/{topic}/groups/{group}/fetch", body.encode())


def acked(member: str, seqs: list[int], group: str = "g", more: str = "", topic: str = "t") -> bytes:
    body = f'{{"member":"{member}","seqs":{seqs}{more}}}'
    return asked("POST", f"/v0/topics/{topic}/groups/{group}/ack", body.encode())


REQUESTS = (
    fetched("a", 1),
    fetched("a", 4),
    fetched("b", 3),
    fetched("b", 3, more=',"max_bytes":1'),
    fetched("b", 1, more=',"wait_ms":1'),
    fetched("b", 1, more=',"claim_idle_ms":60000'),
    fetched("b", 1, more=',"generation":99'),
    fetched("", 1),
    fetched("a", 2, "letters"),
    fetched("a", 2, "stream"),
    fetched("a", 2, "tagged"),
    fetched("a", 2, "none"),
    fetched("a", 2, "g", topic="loose"),
    acked("a", [1]),
    acked("a", [1, 2, 3]),
    acked("a", [2, 1], more=',"tokens":[4,3]'),
    acked("b", [5, 6]),
    acked("b", [5], more=',"tokens":[null]'),
    acked("b", [5], more=',"tokens":[1,2]'),
    acked("a", [3, 3]),
    acked("a", []),
    acked("a", [99]),
    acked("a", [], more=',"ranges":[[1,4]]'),
    acked("a", [1, 2], "letters"),
    acked("a", [1, 2], "stream"),
    acked("a", [1, 2], "tagged"),
    acked("a", [1], topic="loose"),
    asked("POST", "/v0/topics/t/groups/g/nack", b'{"member":"a","seqs":[1,2]}'),
    asked("POST", "/v0/topics/t/groups/letters/nack", b'{"member":"a","seqs":[1,2]}'),
    asked("POST", "/v0/topics/t/groups/g/seek", b'{"to":"earliest","force":true}'),
    asked("POST", "/v0/topics/t/groups/g/leave", b'{"member":"a"}'),
    asked("POST", "/v0/topics/t/delete", b'{"seqs":[2,6]}'),
    posted("t", JOBS),
)
GROUPS = {
    "t/groups/g": b"{}",
    "t/groups/letters": b'{"max_deliveries":1,"dead_letter":"dead"}',
    "t/groups/stream": b'{"mode":"stream"}',
    "t/groups/tagged": b'{"filter":{"tag":"t*"}}',
    "loose/groups/g": b"{}",
}
TIMES = re.compile(rb'"(first|last)_\w+":\d+|"idle_ms":\d+|"deadline":null')


async def made(place: Place) -> Link:
    link = place.link()
    link.send(asked("PUT", "/v0/topics/t", b'{"durability":"fsync"}'))
    link.send(asked("PUT", "/v0/topics/loose", b'{"durability":"ephemeral"}'))
    for name in ("t", "t", "loose"):
        link.send(posted(name, JOBS))
    for name, config in GROUPS.items():
        link.send(asked("PUT", f"/v0/topics/{name}", config))
    await link.all()
    return link


async def warmed(place: Place, count: int) -> list[Link]:
    """Connections over which fetches of two records, and acks of two, go by express from now on."""
    maker = await made(place)
    links = [place.link() for _ in range(count)]
    for link in links:
        for request in (fetched("w", 2), acked("w", [8, 9])):
            link.send(request)
            await link.all()
    maker.send(asked("POST", "/v0/topics/t/groups/g/seek", b'{"to":"earliest","force":true}'))
    await maker.all()
    return links


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
            for name in ("g", "letters"):
                link.send(asked("GET", f"/v0/topics/t/groups/{name}/pending", b""))
            found.append([DEADLINE.sub(b"", answer) for answer in (await link.all())[len(GROUPS) + 5 :]])

        in_place(tmp_path_factory.mktemp("express"), body)
    assert [TIMES.sub(b"", answer) for answer in found[0]] == [TIMES.sub(b"", answer) for answer in found[1]]


def test_convoy_of_a_group_may_be_asked_to_write_as_soon_as_it_is_ordered(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        links = await warmed(place, 2)
        await overtake(place, links, [fetched("w", 2)] * 2)
        await overtake(place, links, [acked("w", [1, 2]), acked("w", [3, 4])])

    in_place(tmp_path / "s", body)


def test_fetches_and_acks_of_one_turn_share_one_write_each(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        links = await warmed(place, 4)
        before = place.writes
        for link in links:
            link.send(fetched("w", 2))
        answers = [(await link.all())[-1] for link in links]
        assert [seqs_of(answer) for answer in answers] == [[1, 2], [3, 4], [5, 6], [7, 8]]
        assert all(b'"committed":1,' in answer for answer in answers)
        assert place.writes == before + 1
        for at, link in enumerate(links):
            link.send(acked("w", [2 * at + 1, 2 * at + 2]))
        for link in links:
            assert b'"acked":2,"stale":[],"why":{},"committed":9,' in (await link.all())[-1]
        assert place.writes == before + 2

    async def again(place: Place) -> None:
        groups = place.store.topics["t"].groups
        assert groups is not None
        group = groups.by_name["g"]
        assert (group.committed, len(group.leases.entries)) == (9, 0)

    in_place(tmp_path / "s", body)
    in_place(tmp_path / "s", again)


def test_one_record_acked_twice_in_one_turn_is_acked_once(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        first, second = await warmed(place, 2)
        first.send(fetched("w", 2))
        await first.all()
        first.send(acked("w", [1, 2]))
        second.send(acked("w", [1, 2]))
        assert b'"acked":2,' in (await first.all())[-1]
        assert b'"acked":0,"stale":[],"why":{"1":"settled","2":"settled"}' in (await second.all())[-1]

    in_place(tmp_path / "s", body)


def test_fetches_get_what_a_router_has_for_their_topic(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        link = place.link()
        link.send(asked("PUT", "/v0/routers/r", b'{"source":"s","dest":"t"}'))
        link.send(asked("PUT", "/v0/topics/t/groups/g", b"{}"))
        for _ in range(3):  # from the second one on its head is known
            for request in (posted("s", b'{"records":[{"data":1}]}'), fetched("w", 2)):
                link.send(request)
                answers = await link.all()
        assert [seqs_of(answer) for answer in answers[3::2]] == [[1], [2], [3]]

    in_place(tmp_path / "s", body)


def test_a_fetch_that_waits_is_answered_by_the_next_append(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        first, second = await warmed(place, 2)
        waiting = fetched("w", 6, more=',"wait_ms":9000')
        for _ in range(2):
            first.send(waiting)
            assert len(seqs_of((await first.all())[-1])) == 6
        first.send(waiting)
        second.send(posted("t", b'{"records":[{"data":"late"}]}'))
        assert b'"late"' in (await first.all())[-1]

    in_place(tmp_path / "s", body)


class Ahead(SystemClock):
    """A minute later than it is."""

    def now_ms(self) -> int:
        return super().now_ms() + 60_000

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + 60_000_000_000


def test_a_record_whose_last_lease_ran_out_is_a_dead_letter_once_anyone_fetches(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        link = await made(place)
        for _ in range(2):  # the second time its head is known
            link.send(fetched("w", 2, "letters"))
            await link.all()
        place.store.clock = Ahead()
        link.send(fetched("w", 2, "letters"))
        link.send(asked("GET", "/v0/topics/t/groups/letters/pending", b""))
        link.send(asked("POST", "/v0/topics/dead/diff", b"{}"))
        *_, fresh, pending, letters = await link.all()
        assert seqs_of(fresh) == seqs_of(pending) == [5, 6]
        assert seqs_of(letters) == [1, 2, 3, 4]

    in_place(tmp_path / "s", body)


def test_a_failed_write_is_told_to_every_rider_and_the_records_are_free_again(tmp_path: Path) -> None:
    async def body(place: Place) -> None:
        links = await warmed(place, 3)
        file = place.store.shards[place.store.topics["t"].shard].file
        assert file is not None
        file.file.close()
        for _ in range(2):  # the second time the shard is known to be read-only
            for link in links:
                link.send(fetched("w", 2))
            for link in links:
                assert (await link.all())[-1][9:12] in (b"500", b"503")
        groups = place.store.topics["t"].groups
        assert groups is not None
        assert not [entry for entry in groups.by_name["g"].leases.entries.values() if entry.deliveries]

    in_place(tmp_path / "s", body)
