"""Operations that an operator asks for."""

from __future__ import annotations

import msgspec

from topics.api.call import Call
from topics.api.http import Response
from topics.api.problems import detail_of
from topics.api.service import Service
from topics.broker.away import away
from topics.broker.scrubbing import Scrub, scrub_store
from topics.broker.steps import Steps

DAMAGE_SHOWN = 1000
"""Damaged records named in one answer; of more, how many there are is told."""


class Checkpointed(msgspec.Struct):
    done: bool
    """False: a part failed and will be tried again."""


class Snapshotted(msgspec.Struct):
    done: bool
    snapshot: int
    """The number of the newest snapshot."""


class Damage(msgspec.Struct):
    topic: str
    file: str
    offset: int


class Scrubbed(msgspec.Struct):
    topics: int
    segments: int
    records: int
    """Looked at."""
    damaged: int
    damage: list[Damage]


async def checkpoint(service: Service, call: Call) -> Response:
    """Copy the WAL into segments and write a snapshot, now."""
    done = await service.loop.run_in_executor(service.readers, service.pump.checkpoint)
    return call.answer(Checkpointed(done), service.now_ns())


async def snapshot(service: Service, call: Call) -> Response:
    """A snapshot says what the segments hold, so everything goes into them first."""
    done = await service.loop.run_in_executor(service.readers, service.pump.checkpoint)
    return call.answer(Snapshotted(done, service.broker.store.snapshots.next_id - 1), service.now_ns())


def scrub(service: Service, call: Call) -> Steps[Response]:
    """Read every sealed record, of one topic or of all, and name those that are damaged, and damaged indexes.
    Nothing is changed."""
    store = service.broker.store
    name = call.query.get("topic")
    found: Scrub = yield from away(store, service.readers, lambda: scrub_store(store, name, call.key.may_name))
    damage = [Damage(topic, **detail_of(error)) for topic, error in found.damage[:DAMAGE_SHOWN]]
    shown = Scrubbed(found.topics, found.segments, found.records, len(found.damage), damage)
    return call.answer(shown, service.now_ns())
