"""Routers as a caller sees them: make, look at, list, drop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal

import msgspec

from topics.broker.listing import page_of
from topics.broker.router import pull_router
from topics.broker.steps import Steps, asked, settled
from topics.format.control import RouterBits, Selector, SelectorOp
from topics.model.config import TopicConfig, check_router_name, check_topic_name
from topics.model.errors import (
    InvalidRequest,
    RouterCycle,
    RouterNotFound,
    Throttled,
    TopicExists,
    TopicNotFound,
)
from topics.storage.routers import Router
from topics.storage.store import Store
from topics.storage.submission import Submission, WaitFirst
from topics.storage.topic import Topic

Guarantee = Literal["at_least_once", "exactly_once"]


class RouterSpec(msgspec.Struct, frozen=True):
    """What a router is to do."""

    source: str
    dest: str
    bits: RouterBits
    filter: Selector | None


class RouterView(msgspec.Struct, frozen=True, kw_only=True):
    router: str
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: tuple[str, str, str] | None
    allow_cycle: bool
    guarantee: Guarantee


class RouterRow(msgspec.Struct, frozen=True):
    """A router in a list."""

    router: str
    source: str
    dest: str
    guarantee: Guarantee
    forwarded_total: int


class Routing:
    def __init__(self, store: Store, max_routers: int = 0) -> None:
        self.store = store
        self.max_routers = max_routers
        """0 = no limit."""

    def put(self, name: str, spec: RouterSpec) -> Steps[bool]:
        """Make a router, or replace the options of one that exists; True if it is new. Topics it needs are made."""
        check_router_name(name)
        if spec.source == spec.dest:
            raise InvalidRequest("a router copies from one topic to another: source and dest are the same")
        check_topic_name(spec.source, "source")
        check_topic_name(spec.dest, "dest")
        while True:
            # Everything is decided anew after each wait: others made and dropped topics and routers meanwhile.
            created, submission = yield from asked(self.store, lambda: self._ask(name, spec))
            yield from settled(submission)
            if created is not None:
                return created

    def _ask(self, name: str, spec: RouterSpec) -> tuple[bool | None, Submission | None]:
        """Under the lock: the next thing to be logged. None, and a submission: a topic is being made first."""
        store = self.store
        store.check_open()
        store.routers.check_settled()
        dest = self._there(spec.dest)
        if dest is None and not spec.bits & RouterBits.CREATE_DEST:
            raise TopicNotFound(spec.dest)
        known = store.routers.by_name.get(name)
        self._check(name, spec, known)
        shard = store.shards[0]
        shard.check()
        source = self._there(spec.source)
        for topic, wanted in ((source, spec.source), (dest, spec.dest)):
            if topic is None:
                return None, store.create(wanted, TopicConfig().resolved())
        assert source is not None
        assert dest is not None
        if known is not None and (known.bits, known.filter) == (spec.bits, spec.filter):
            return False, None
        router = Router(
            store.next_topic_id, name, spec.source, spec.dest, source.id, dest.id, spec.bits, spec.filter,
            source.head, source.head,
        )  # fmt: skip
        if known is not None:
            router.id, router.cursor = known.id, known.cursor
        else:
            store.next_topic_id += 1
        return known is None, store.routers.put(shard, router, store.by_id, store.clock.now_ms())

    def _there(self, name: str) -> Topic | None:
        topic = self.store.topics.get(name)
        if topic is not None and topic.closing:
            raise WaitFirst(topic.pending[-1].submission)
        return topic

    def _check(self, name: str, spec: RouterSpec, known: Router | None) -> None:
        others = [router for router in self.store.routers.by_name.values() if router.name != name]
        if any(router.dest == spec.dest and router.source != spec.source for router in others):
            raise TopicExists(
                f"topic {spec.dest!r} is fed from another source already; a topic has one source",
                topic=spec.dest,
                reason="router_dest_fan_in",
            )
        if known is not None and (known.source, known.dest) != (spec.source, spec.dest):
            raise TopicExists(
                f"router {name!r} goes from {known.source!r} to {known.dest!r}; drop it to point it elsewhere",
                router=name,
                reason="router_repoint_forbidden",
                existing_source=known.source,
                existing_dest=known.dest,
            )
        if known is None and 0 < self.max_routers <= len(others):
            limit = self.max_routers
            raise Throttled(f"the store holds {limit} routers, its limit", limit="max_routers", max=limit)
        cycle = None if spec.bits & RouterBits.ALLOW_CYCLE else find_cycle(spec.source, spec.dest, others)
        if cycle is not None:
            raise RouterCycle(f"the router would close a cycle: {' -> '.join(cycle)}", cycle=cycle)

    def find(self, name: str) -> Router:
        with self.store.lock:
            self.store.check_open()
            router = self.store.routers.by_name.get(name)
        if router is None:
            raise RouterNotFound(name)
        return router

    def pulled(self, name: str) -> Steps[Router]:
        """The router, with everything copied that its source had when this was asked."""
        router = self.find(name)
        with self.store.lock:
            source = self.store.by_id.get(router.source_id)
        if source is not None:
            yield from pull_router(self.store, router, source)
        return router

    def page(
        self, prefix: str, source: str, dest: str, after: str | None, size: int, allowed: Callable[[str], bool]
    ) -> tuple[list[RouterRow], str | None]:
        """Those with this source and dest; an empty one = any."""
        with self.store.lock:
            self.store.check_open()
            routers = self.store.routers.by_name

            def wanted(name: str) -> bool:
                router = routers[name]
                if router.source != (source or router.source) or router.dest != (dest or router.dest):
                    return False
                return allowed(name) and allowed(router.source) and allowed(router.dest)

            names, following = page_of(routers, prefix, after, size, wanted)
            return [row_of(routers[name]) for name in names], following

    def drop(self, name: str) -> Steps[bool]:
        """False if there is none. Copies stay."""

        def ask() -> Submission | None:
            store = self.store
            store.check_open()
            store.routers.check_settled()
            if name not in store.routers.by_name:
                return None
            store.shards[0].check()
            return store.routers.drop(store.shards[0], name, store.clock.now_ms())

        submission = yield from asked(self.store, ask)
        yield from settled(submission)
        return submission is not None


def find_cycle(source: str, dest: str, others: list[Router]) -> list[str] | None:
    """The shortest way source, dest, …, source over the edges of other routers and the one from source to dest."""
    edges: dict[str, set[str]] = {}
    for router in others:
        edges.setdefault(router.source, set()).add(router.dest)
    came_from: dict[str, str] = {dest: source}
    queue = deque([dest])
    while queue:
        at = queue.popleft()
        if at == source:
            break
        for following in sorted(edges.get(at, ())):
            if following not in came_from:
                came_from[following] = at
                queue.append(following)
    else:
        return None
    way = [source]
    while way[-1] != dest:
        way.append(came_from[way[-1]])
    return [source, *reversed(way)]


def guarantee_of(router: Router) -> Guarantee:
    return "exactly_once" if router.bits & RouterBits.EXACTLY_ONCE else "at_least_once"


def view_of(router: Router | RouterSpec, name: str) -> RouterView:
    bits, match = router.bits, router.filter
    shown = None
    if match is not None:
        shown = ("tag", "Glob", f"{match.value}*") if match.op == SelectorOp.GLOB else ("tag", "Eq", match.value)
    return RouterView(
        router=name,
        source=router.source,
        dest=router.dest,
        preserve_node=bool(bits & RouterBits.PRESERVE_NODE),
        preserve_tag=bool(bits & RouterBits.PRESERVE_TAG),
        filter=shown,
        allow_cycle=bool(bits & RouterBits.ALLOW_CYCLE),
        guarantee="exactly_once" if bits & RouterBits.EXACTLY_ONCE else "at_least_once",
    )


def row_of(router: Router) -> RouterRow:
    return RouterRow(router.name, router.source, router.dest, guarantee_of(router), router.forwarded)
