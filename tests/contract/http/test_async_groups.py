"""Groups through the client for event loops: each call once, and what is refused."""

from __future__ import annotations

import asyncio

import pytest

from tests.contract.http.live import ServerProcess
from topics.client import AsyncClient
from topics.model.errors import GroupNotFound, InvalidRequest, StaleGeneration


def test_a_group_is_worked_from_an_event_loop(live_server: ServerProcess, topic: str) -> None:
    async def work() -> None:
        async with AsyncClient(f"http://{live_server.host}:{live_server.port}") as client:
            await client.append(topic, [{"data": n} for n in range(1, 9)])
            group = client.group(topic, "g")
            assert (await group.create(visibility_ms=60_000)).created
            first = await group.join("m")
            again = await group.join("m")
            assert again.generation > first.generation
            with pytest.raises(StaleGeneration):
                await group.heartbeat("m", first.generation)
            assert (await group.heartbeat("m", again.generation)).generation == again.generation
            fetched = await group.fetch("m", max=6)
            assert [item.record.seq for item in fetched.records] == [1, 2, 3, 4, 5, 6]
            assert (await group.ack("m", [1], ranges=[(2, 3)])).acked == 3
            assert (await group.ack("m", [1])).acked == 0, "a repeated ack is a success that counts nothing"
            assert (await group.ack("other", [4])).why == {4: "member"}
            assert (await group.nack("m", [4], delay_ms=60_000)).nacked == 1
            assert (await group.reject("m", [5], reason="no")).rejected == 1
            assert (await group.extend("m", [6], 90_000)).extended == 1
            assert [(row.seq, row.member) async for row in group.pending(limit=2)] == [(4, "m"), (5, "m"), (6, "m")]
            taken = await group.claim("n", 0, seqs=[6])
            assert [(item.record.seq, item.delivery.count) for item in taken.records if item.delivery] == [(6, 2)]
            with pytest.raises(InvalidRequest):
                await group.ack("m", [99])
            assert (await group.leave("m")).generation == again.generation
            assert (await group.seek("earliest", force=True, dry_run=True)).replayed == 6
            assert (await group.seek({"seq": 8}, force=True)).to == 8
            assert (await group.info()).cursor == 8
            stream = client.group(topic, "s")
            await stream.create(mode="stream", start="earliest")
            assert len((await stream.fetch("m", max=5)).records) == 5
            assert (await stream.commit(6)).committed == 6
            assert [found.group async for found in client.groups(topic)] == ["g", "s"]
            assert (await group.drop()).deleted
            with pytest.raises(GroupNotFound):
                await group.info()

    asyncio.run(work())


def test_members_in_one_event_loop_share_the_records(live_server: ServerProcess, topic: str) -> None:
    async def work() -> list[list[int]]:
        async with AsyncClient(f"http://{live_server.host}:{live_server.port}") as client:
            await client.append(topic, [{"data": n} for n in range(200)])
            group = client.group(topic, "g")
            await group.create()

            async def member(name: str) -> list[int]:
                taken: list[int] = []
                while records := (await group.fetch(name, max=7)).records:
                    seqs = [item.record.seq for item in records]
                    assert (await group.ack(name, seqs)).acked == len(seqs)
                    taken += seqs
                return taken

            shares = await asyncio.gather(*(member(f"m{n}") for n in range(8)))
            assert (await group.info()).committed == 201
            return list(shares)

    shares = asyncio.run(work())
    assert sorted(seq for share in shares for seq in share) == list(range(1, 201))
