"""Users of routers: making and dropping them, and the passes that copy, each told to the oracle as part of the dest."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from topics.broker.router import forward
from topics.broker.routing import RouterSpec, Routing
from topics.format.control import RouterBits, RouterCreate, RouterCursor, Selector, SelectorOp
from topics.format.frame import Kind, decode_frame
from topics.model.errors import RouterCycle, TopicExists
from topics.model.record import Record
from topics.storage.append import AppendSubmission
from topics.storage.routers import Router
from topics.storage.submission import Submission, WaitFirst
from topics.testing.oracle import Instance, Step, Violation
from topics.testing.plain import Appended, Missed, Progress, State
from topics.testing.routes import ListStep, Route

if TYPE_CHECKING:
    from tests.crash.client import Client

_TRIMS = ("cap", "ttl", "mixed", "source_trim", "corrupt")
_FILTERS = (None, None, Selector(SelectorOp.EQ, "b:1"), Selector(SelectorOp.GLOB, "a"))
_BITS = (
    RouterBits.PRESERVE_NODE | RouterBits.PRESERVE_TAG,
    RouterBits.PRESERVE_NODE | RouterBits.PRESERVE_TAG,
    RouterBits(0),
)


class Routes:
    def __init__(self, client: Client) -> None:
        self.client = client
        self.store = client.store
        self.oracle = client.oracle
        self.counts = client.counts

    # -- the list ------------------------------------------------------------------------------------------------------

    def draw(self) -> Callable[[], Submission | None]:
        rng, profile = self.client.rng, self.client.profile
        name = f"r{rng.randrange(profile.routers)}"
        if rng.random() < 0.25:
            return lambda: self.drop(name)
        source, dest = (f"t{rng.randrange(profile.topics)}" for _ in range(2))
        spec = RouterSpec(source, dest, rng.choice(_BITS), rng.choice(_FILTERS))
        return lambda: self.put(name, spec)

    def put(self, name: str, spec: RouterSpec) -> Submission | None:
        if spec.source == spec.dest or any(self.client.instance(topic) is None for topic in (spec.source, spec.dest)):
            return None
        known = self.store.routers.by_name.get(name)
        try:
            made, token = Routing(self.store)._ask(name, spec)
        except (TopicExists, RouterCycle):
            return None
        if token is None:
            return None
        frame = token.buffers[0]
        body = RouterCreate.decode(decode_frame(frame, 0, len(frame)).body)
        route = Route(body.router_id, body.name, body.source_id, body.dest_id, body.bits, body.filter)
        if (known is None) != made or (known is not None and known.id != route.id):
            raise Violation(f"router {name!r} is made anew: {made}, known before: {known}")
        if route.id in self.oracle.instances or (made and route.id in self.oracle.routers.starts):
            raise Violation(f"router {name!r} got the id {route.id} a second time")
        self.oracle.routers.add(ListStep(name, route, token), body.cursor)
        self.counts["router put"] += 1
        return token

    def drop(self, name: str) -> Submission | None:
        store = self.store
        store.routers.check_settled()
        if name not in store.routers.by_name:
            return None
        store.shards[0].check()
        token = store.routers.drop(store.shards[0], name, store.clock.now_ms())
        self.oracle.routers.add(ListStep(name, None, token), 0)
        self.counts["router drop"] += 1
        return token

    # -- a pass --------------------------------------------------------------------------------------------------------

    def advance(self, router: Router) -> Submission | None:
        """One pass of a router, as the forwarder of a server does it."""
        store, client = self.store, self.client
        if router.under_way is not None:
            return router.under_way
        source, dest = store.by_id.get(router.source_id), store.by_id.get(router.dest_id)
        if not store.routers.has(router) or source is None or dest is None:
            return None
        for topic in (dest, source):
            client.sweep(topic.name)
        self.oracle.settle()
        into, out_of = self.oracle.instances[dest.id], self.oracle.instances[source.id]
        before, forwarded, head = router.cursor, router.forwarded, dest.head
        try:
            done = forward(store, router)
        except WaitFirst as first:
            client.note_eviction(into, None, first.submission)
            raise
        if not done.moved:
            self._check_standing(router, into, out_of)
            return None
        token = done.submission
        if token is None:
            now = Progress(router.id, router.cursor, router.forwarded)
            count = dest.head - head
            place = (head + 1 if count else client.present(into, "forward").head + 1, count, dest.last_ts)
            self._note_pass(router, before, forwarded, now, place, None)
            return None
        frame = token.buffers[0]
        if frame[4] != Kind.ROUTER_CURSOR:
            raise Violation(f"router {router.name!r} copies without saying how far it is")
        body = RouterCursor.decode(decode_frame(frame, 0, len(frame)).body)
        now = Progress(body.router_id, body.cursor, body.forwarded_total)
        state = client.present(into, "forward")
        place = (state.head + 1, 0, 0)
        if isinstance(token, AppendSubmission):
            place = (token.first_seq, token.count, token.ts)
        self._note_pass(router, before, forwarded, now, place, token)
        return token

    def _note_pass(
        self,
        router: Router,
        before: int,
        forwarded: int,
        now: Progress,
        place: tuple[int, int, int],
        token: Submission | None,
    ) -> None:
        """`place`: first seq, count and time of what the dest got."""
        into, out_of = self.oracle.instances[router.dest_id], self.oracle.instances[router.source_id]
        self.oracle.routers.heard.setdefault(router.id, set()).add((now.cursor, now.forwarded))
        assert out_of.published is not None
        state = self.client.present(into, "forward")
        first, count, ts = place
        copies = _copies(router, out_of.published, before, now.cursor, first, ts)
        holes = _holes(out_of.published, before, now.cursor)
        what = f"router {router.name!r} from {before} to {now.cursor}"
        if now.cursor <= before or now.forwarded - forwarded != len(copies) + len(holes) or (copies and holes):
            raise Violation(f"{what} forwards {now.forwarded - forwarded}, expected {len(copies)} and holes {holes}")
        if first != state.head + 1 or first <= into.handed:
            raise Violation(f"{what} got the seq {first} behind {state.head}; {into.handed} was acknowledged")
        if copies:
            if count != len(copies):
                raise Violation(f"{what} made {count} records of {len(copies)}")
            self.client.note_append(into, Appended(copies, progress=now), token)
            self.counts["router pass"] += 1
            self.counts["router pass in RAM"] += token is None
            return
        if token is None and not holes:
            into.pass_over(now)  # at once, whatever else is on its way into the topic
        else:
            into.add(Step(Missed(first, first + len(holes) - 1, now, ram=token is None), token, state.durability))
        self.counts["router pass over a trim" if holes else "router pass without a copy"] += 1

    def _check_standing(self, router: Router, into: Instance, out_of: Instance) -> None:
        if out_of.published is None or into.ordered is None or into.ordered.config.discard == "reject":
            return
        if router.cursor < out_of.published.head:
            raise Violation(f"router {router.name!r} stands at {router.cursor} of {out_of.published.head}")


def _copies(router: Router, source: State, before: int, cursor: int, first: int, ts: int) -> list[Record]:
    chosen = [
        record
        for record in source.records.values()
        if before < record.seq <= cursor and (router.filter is None or router.filter.matches(record.tag))
    ]
    return [
        Record(
            first + at,
            ts,
            record.tag if router.bits & RouterBits.PRESERVE_TAG else None,
            record.node if router.bits & RouterBits.PRESERVE_NODE else None,
            record.key,
            record.meta_raw,
            record.raw,
        )
        for at, record in enumerate(chosen)
    ]


def _holes(source: State, before: int, cursor: int) -> list[int]:
    """What the source had and lost against anyone's will before it was copied."""
    floor = source.involuntary_floor
    return [
        seq for seq in range(before + 1, cursor + 1) if seq <= floor or source.lost.get(seq) in _TRIMS
    ]  # fmt: skip
