"""The judge of the kills is judged itself: it finds nothing where all is well, and every kind of broken promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.http.client import Api, InProcess
from tests.contract.http.inprocess import Engine
from tests.integration.server.load import send
from tests.integration.server.promises import DEST, PICKED, SOURCE, Batch, Promises, configs, own, raw_of, routers
from tests.integration.server.verify import faults


class World:
    """A server with every topic and router of the load, and a batch in some of them."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.promises = Promises()
        for name, config in configs().items():
            api.put(name, **config)
        for name, fields in routers().items():
            api.call("PUT", f"/v0/routers/{name.replace('>', '%3E')}", fields)
        self.batches = [self.append(topic, n) for n, topic in enumerate(("fsync", SOURCE, DEST, SOURCE, own(1)), 1)]

    def append(self, topic: str, number: int) -> Batch:
        batch = Batch(topic, 1, 1, number, 3, None)
        self.promises.ask_append(batch)
        self.promises.answer_append(batch, send(self.api, batch, as_lines=False).json["first_seq"])
        return batch

    def of(self, topic: str) -> Batch:
        return next(batch for batch in self.batches if batch.topic == topic)

    def found(self) -> str:
        return "\n".join(faults(self.api, self.promises))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    engine = Engine(str(tmp_path / "store"))
    yield World(Api(InProcess(engine)))
    engine.close()


def lose_a_record(world: World) -> None:
    world.api.delete("fsync", match=world.of("fsync").tag)


def lose_a_copy(world: World) -> None:
    world.api.diff(DEST)
    world.api.delete(DEST, match=world.of(SOURCE).tag)


def lose_a_picked_copy(world: World) -> None:
    world.api.diff(PICKED)
    world.api.delete(PICKED, match=world.of(SOURCE).tag)


def append_twice(world: World) -> None:
    send(world.api, world.of("fsync"), as_lines=True)


def copy_twice(world: World) -> None:
    world.api.diff(DEST)
    again = world.of(SOURCE)
    send(world.api, Batch(DEST, again.run, again.worker, again.number, again.count, None), as_lines=False)


def invent_a_record(world: World) -> None:
    raw = raw_of((9, 9, 9, 9))
    body = b'{"records":[{"data":%b}]}' % raw
    world.api.call("POST", "/v0/topics/fsync", body, {"content-type": "application/json"})


def promise_another_seq(world: World) -> None:
    batch = world.of("fsync")
    assert batch.first_seq is not None
    batch.first_seq += 1


def promise_a_delete(world: World) -> None:
    batch = world.of("fsync")
    world.promises.answer_delete("fsync", world.promises.ask_delete(1, "fsync", batch.tag))


def promise_a_delete_by_seq(world: World) -> None:
    world.promises.below[own(1)] = world.promises.below_asked[own(1)] = 3


def show_other_bytes(world: World) -> None:
    world.promises.saw("fsync", [(1, raw_of((1, 1, 1, 2)))])


def show_what_is_gone(world: World) -> None:
    world.promises.saw("fsync", [(77, raw_of((1, 1, 1, 2)))])


def drop_a_topic(world: World) -> None:
    world.api.call("DELETE", f"/v0/topics/{own(1)}")


def evict_records(world: World) -> None:
    world.api.call("PATCH", "/v0/topics/fsync", {"cap_records": 1})


BROKEN: dict[Callable[[World], None], str] = {
    lose_a_record: "lacks",
    lose_a_copy: "was not copied",
    lose_a_picked_copy: "the filtered router copied 3 of 6",
    append_twice: "twice",
    copy_twice: "twice",
    invent_a_record: "is not what was appended",
    promise_another_seq: "stands at",
    promise_a_delete: "came back",
    promise_a_delete_by_seq: "came back",
    show_other_bytes: "was read as",
    show_what_is_gone: "was read and is gone",
    drop_a_topic: "lacks",
    evict_records: "was lost",
}


def test_kept_promises_have_no_faults(world: World) -> None:
    assert world.found() == ""
    assert world.found() == "", "looking changes nothing"


@pytest.mark.parametrize("breach", BROKEN, ids=lambda breach: breach.__name__)
def test_broken_promise_is_found(world: World, breach: Callable[[World], None]) -> None:
    breach(world)
    assert BROKEN[breach] in world.found()
