"""What must be true of routers: the list of them, and how far each is.

The list is a log of its own, in one shard, so recovery gives the list behind some prefix of its changes, without the
routers whose topics are gone. How far a router is lies with its copies: it is a part of the state of the dest.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from topics.format.control import Selector
from topics.storage.store import Store
from topics.storage.submission import State as TokenState
from topics.storage.submission import Submission
from topics.testing.plain import State
from topics.testing.view import View


@dataclass(frozen=True, slots=True)
class Route:
    """One router, but for its progress."""

    id: int
    name: str
    source_id: int
    dest_id: int
    bits: int
    filter: Selector | None


def view_routes(store: Store) -> dict[str, Route]:
    return {
        router.name: Route(router.id, router.name, router.source_id, router.dest_id, router.bits, router.filter)
        for router in store.routers.by_name.values()
    }


@dataclass(slots=True)
class ListStep:
    """One change of the list: a router put under a name, or (None) the name dropped."""

    name: str
    route: Route | None
    token: Submission

    @property
    def was_refused(self) -> bool:
        """It failed before a byte of it was written."""
        return self.token.state == TokenState.FAILED and self.token.file is None


@dataclass(slots=True)
class RouterOracle:
    base: dict[str, Route] = field(default_factory=dict)
    """The list as of the last recovery."""
    steps: list[ListStep] = field(default_factory=list)
    starts: dict[int, int] = field(default_factory=dict)
    """By id: the head of the source when the router was made."""
    heard: dict[int, set[tuple[int, int]]] = field(default_factory=dict)
    """By id: all progress so far. Of a dest that was in RAM once, a snapshot may have kept any of it."""
    astray: frozenset[int] = frozenset()
    """Routers whose logged progress was spoilt on the disk: they may be back at any of it, too."""

    def add(self, step: ListStep, start: int) -> None:
        self.steps.append(step)
        if step.route is not None:
            self.starts.setdefault(step.route.id, start)

    def live(self, topics: Container[int]) -> dict[str, Route]:
        """The list that the running store must have."""
        acked = [step for step in self.steps if step.token.state == TokenState.DONE]
        return _fold(self.base, acked, topics)

    def check_live(self, found: dict[str, Route], topics: Container[int]) -> str | None:
        wanted = self.live(topics)
        return None if found == wanted else f"the routers are {found}, expected {wanted}"

    def check_recovered(self, found: dict[str, Route], topics: Container[int], damaged: bool = False) -> str | None:
        """Every change that was acknowledged is there, and perhaps some behind them. `damaged`: the list was spoilt."""
        if damaged:
            ids = {route.id for route in found.values()}
            self.starts = {router_id: start for router_id, start in self.starts.items() if router_id in ids}
            self.adopt(found)
            return None
        steps = [step for step in self.steps if not step.was_refused]
        least = max((at for at, step in enumerate(steps, 1) if step.token.state == TokenState.DONE), default=0)
        choices = [_fold(self.base, steps[:taken], topics) for taken in range(least, len(steps) + 1)]
        self.adopt(found)
        return None if found in choices else f"the recovered routers are {found}, expected one of {choices}"

    def adopt(self, found: dict[str, Route]) -> None:
        """The id of a router that nobody was told of, and that is not there, may be given again."""
        ids = {route.id for route in found.values()}
        for step in self.steps:
            if step.route is not None and step.token.state != TokenState.DONE and step.route.id not in ids:
                self.starts.pop(step.route.id, None)
        self.base = dict(found)
        self.steps = []

    def hear(self, views: Iterable[View]) -> None:
        """Recovery, too, says how far a router is: one that was ahead of its source goes on from the source's end."""
        for view in views:
            for router_id, (cursor, copies, _) in view.routers.items():
                self.heard.setdefault(router_id, set()).add((cursor, copies))

    def forgive(self, state: State, view: View, soft: bool) -> None:
        """Into a topic that was in RAM once (`soft`), or where frames are spoilt: how far its routers were may be as a
        snapshot kept it."""
        for router_id, (cursor, copies, head) in view.routers.items():
            if not soft and router_id not in self.astray:
                continue
            known = self.heard.get(router_id, set()) | {(self.starts.get(router_id, -1), 0)}
            if any((min(heard, head), more) == (cursor, copies) for heard, more in known):
                state.progress[router_id] = (cursor, copies)


def _fold(base: Mapping[str, Route], steps: list[ListStep], topics: Container[int]) -> dict[str, Route]:
    routes = dict(base)
    for step in steps:
        if step.route is None:
            routes.pop(step.name, None)
        else:
            routes[step.name] = step.route
    return {name: route for name, route in routes.items() if route.source_id in topics and route.dest_id in topics}


def progress_difference(state: State, view: View, starts: Mapping[int, int]) -> str | None:
    """What a router into the topic says of itself, against the copies that are there. Where the source fell back, the
    cursor falls back with it: what gets those seqs now was not copied yet."""
    for router_id, (cursor, copies, source_head) in view.routers.items():
        want, forwarded = state.progress.get(router_id, (starts.get(router_id, -1), 0))
        if (cursor, copies) != (min(want, source_head), forwarded):
            return (
                f"router {router_id} is at {cursor} with {copies} copies, "
                f"expected {min(want, source_head)} with {forwarded}"
            )
    return None
