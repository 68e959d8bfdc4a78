"""Making and dropping routers: the order of the checks, cycles, and changes that meet each other."""

from __future__ import annotations

import pytest

from tests.unit.broker.routed import PLAIN, Routed
from topics.broker.broker import Broker
from topics.broker.routing import RouterRow, RouterSpec, Routing, find_cycle
from topics.broker.steps import Steps
from topics.format.control import RouterBits
from topics.model.config import TopicConfig
from topics.model.errors import (
    InvalidRequest,
    RouterCycle,
    RouterNotFound,
    Throttled,
    TopicExists,
    TopicNotFound,
)
from topics.storage.submission import Submission


@pytest.fixture
def routed() -> Routed:
    return Routed()


def start(steps: Steps[object]) -> Submission:
    """Run a use case up to its first wait; what it waits for has to be driven before it goes on."""
    wait = next(steps)
    assert isinstance(wait, Submission)
    return wait


def test_absent_topics_are_made_with_the_defaults(routed: Routed) -> None:
    assert routed.put("r", "a", "b") is True
    assert routed.put("r", "a", "b") is False
    for name in ("a", "b"):
        assert routed.store.topic(name).config == TopicConfig().resolved()


def test_each_check_comes_before_the_next(routed: Routed) -> None:
    routed.put("one", "a", "b")
    routing = Routing(routed.store, max_routers=1)
    no_create = PLAIN & ~RouterBits.CREATE_DEST

    def refused(kind: type[Exception], name: str, source: str, dest: str, bits: RouterBits = no_create) -> object:
        with pytest.raises(kind) as caught:
            routed.run(routing.put(name, RouterSpec(source, dest, bits, None)))
        return getattr(caught.value, "facts", None)

    refused(InvalidRequest, ">r", "x", "x")
    refused(InvalidRequest, "r", "-x", "-x")
    refused(InvalidRequest, "r", "a", "-x")
    assert refused(TopicNotFound, "r", "x", "y") == {"topic": "y"}
    assert refused(TopicExists, "r", "x", "b") == {"topic": "b", "reason": "router_dest_fan_in"}
    routed.create("y")
    assert refused(TopicExists, "one", "x", "y") == {
        "router": "one",
        "reason": "router_repoint_forbidden",
        "existing_source": "a",
        "existing_dest": "b",
    }
    assert refused(Throttled, "r", "b", "a") == {"limit": "max_routers", "max": 1}
    routing.max_routers = 2
    assert refused(RouterCycle, "r", "b", "a") == {"cycle": ["b", "a", "b"]}
    assert "x" not in routed.store.topics
    assert list(routed.store.routers.by_name) == ["one"]


def test_a_limit_on_routers_lets_updates_pass(routed: Routed) -> None:
    routing = Routing(routed.store, max_routers=1)
    assert routed.run(routing.put("r", RouterSpec("a", "b", PLAIN, None)))
    assert not routed.run(routing.put("r", RouterSpec("a", "b", RouterBits.CREATE_DEST, None)))
    assert routed.router("r").bits == RouterBits.CREATE_DEST


def test_no_router_is_left_where_its_topics_cannot_be_made() -> None:
    routed = Routed(max_topics=1)
    with pytest.raises(Throttled, match="topics"):
        routed.put("r", "a", "b")
    assert routed.store.routers.by_name == {}


def test_a_cycle_is_told_from_its_source_and_back(routed: Routed) -> None:
    for source, dest in (("a", "b"), ("b", "c"), ("b", "d"), ("d", "e")):
        routed.put(f"{source}->{dest}", source, dest)
    with pytest.raises(RouterCycle) as caught:
        routed.put("e->a", "e", "a")
    assert caught.value.facts["cycle"] == ["e", "a", "b", "d", "e"]
    assert routed.put("e->a", "e", "a", PLAIN | RouterBits.ALLOW_CYCLE)
    # An update is looked at anew, with the edges of the others alone.
    with pytest.raises(RouterCycle):
        routed.put("e->a", "e", "a")


def test_a_graph_without_a_way_back_has_no_cycle() -> None:
    assert find_cycle("a", "b", []) is None


def test_an_update_keeps_the_progress_and_a_new_one_starts_at_the_head(routed: Routed) -> None:
    routed.put("r", "a", "b")
    routed.append("a", 1, 2)
    routed.pull("b")
    routed.append("a", 3)
    routed.put("r", "a", "b", RouterBits.CREATE_DEST, "none")
    assert (routed.router("r").cursor, routed.router("r").forwarded) == (2, 2)
    routed.kill()
    assert (routed.router("r").cursor, routed.router("r").forwarded) == (2, 2)
    assert routed.router("r").bits == RouterBits.CREATE_DEST
    routed.drop("r")
    routed.put("r", "a", "b")
    assert routed.router("r").forwarded == 0
    routed.pull("b")
    assert routed.data("b") == [1, 2]


def test_an_equal_update_logs_nothing(routed: Routed) -> None:
    routed.put("r", "a", "b")
    frames = routed.store.shards[0].stats.frames
    assert routed.put("r", "a", "b") is False
    assert routed.store.shards[0].stats.frames == frames


def test_changes_of_the_list_wait_for_each_other(routed: Routed) -> None:
    for name in ("a", "b"):
        routed.create(name)
    first = routed.routing.put("r", RouterSpec("a", "b", PLAIN, None))
    under_way = start(first)
    second = routed.routing.put("r", RouterSpec("b", "a", PLAIN, None))
    assert start(second) is under_way
    third = routed.routing.drop("r")
    assert start(third) is under_way
    routed.store.drive(under_way)
    assert routed.run(first) is True
    with pytest.raises(TopicExists):
        routed.run(second)
    assert routed.run(third) is True


def test_a_topic_waits_with_its_end_for_a_router_being_made(routed: Routed) -> None:
    for name in ("a", "b"):
        routed.create(name)
    making = routed.routing.put("r", RouterSpec("a", "b", PLAIN, None))
    under_way = start(making)
    broker = Broker(routed.store, routed.clock)
    dropping = broker.drop_topic("b", False)
    assert start(dropping) is under_way
    routed.store.drive(under_way)
    routed.run(making)
    assert routed.run(dropping) == ["r"]
    assert routed.store.routers.by_name == {}


def test_a_router_waits_for_the_end_of_its_topic_and_makes_a_new_one(routed: Routed) -> None:
    routed.create("a")
    routed.create("b")
    old = routed.store.topic("b").id
    ending = routed.store.drop("b")
    making = routed.routing.put("r", RouterSpec("a", "b", PLAIN, None))
    assert start(making) is ending
    routed.store.drive(ending)
    assert routed.run(making) is True
    assert routed.router("r").dest_id == routed.store.topic("b").id > old


def test_a_router_whose_topic_went_while_it_was_logged_is_not_there() -> None:
    routed = Routed(wal_shards=3)
    routed.on_shard(0, "a")
    routed.on_shard(1, "b")
    making = routed.routing.put("r", RouterSpec("a", "b", PLAIN, None))
    logged = start(making)
    ending = routed.store.drop("b")
    assert ending is not None
    while not ending.settled:
        routed.store.step(routed.store.shards[1])
    routed.store.drive(logged)
    routed.run(making)
    assert routed.store.routers.by_name == {}
    routed.kill()
    assert routed.store.routers.by_name == {}


def test_a_dropped_topic_ends_the_routers_that_touch_it(routed: Routed) -> None:
    routed.put("z", "a", "b")
    routed.put("y", "b", "c")
    routed.put("x", "c", "d")
    broker = Broker(routed.store, routed.clock)
    assert routed.run(broker.drop_topic("b", False)) == ["y", "z"]
    assert routed.run(broker.drop_topic("b", False)) is None
    assert list(routed.store.routers.by_name) == ["x"]
    routed.put("z", "a", "b")
    routed.kill()
    assert sorted(routed.store.routers.by_name) == ["x", "z"]
    routed.append("a", 1)
    routed.pull("b")
    assert routed.data("b") == [1]


def test_lists_come_in_pages_and_by_source_and_dest(routed: Routed) -> None:
    routed.put("ab", "a", "b")
    routed.put("ac", "a", "c")
    routed.put("bd", "b", "d")
    page = routed.routing.page

    def everyone(_: str) -> bool:
        return True

    def names(found: tuple[list[RouterRow], str | None]) -> list[str]:
        return [row.router for row in found[0]]

    assert names(page("", "", "", None, 10, everyone)) == ["ab", "ac", "bd"]
    assert names(page("a", "", "", None, 10, everyone)) == ["ab", "ac"]
    assert names(page("", "a", "", None, 10, everyone)) == ["ab", "ac"]
    assert names(page("", "", "d", None, 10, everyone)) == ["bd"]
    assert names(page("", "a", "d", None, 10, everyone)) == []
    first = page("", "", "", None, 2, everyone)
    assert (names(first), first[1]) == (["ab", "ac"], "ac")
    assert names(page("", "", "", "ac", 2, everyone)) == ["bd"]
    assert names(page("", "", "", None, 10, lambda name: name != "b")) == ["ac"]


def test_an_absent_router_is_not_found_and_not_dropped(routed: Routed) -> None:
    with pytest.raises(RouterNotFound):
        routed.routing.find("r")
    assert routed.drop("r") is False
    assert routed.drop("not a name") is False
