"""A directory as a crash left it, read by Spark's reader and by the store that recovers it: both give the same."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import replace

import pytest

from tests.conftest import SEED
from tests.crash.ledger import read_all
from tests.crash.life import ROOT
from tests.crash.simulation import Simulation
from tests.spark.readers import Item, item_of, items_of_batches, place
from topics.model.errors import StorageError
from topics.spark.frames import Wanted
from topics.spark.options import Filter, parse_options
from topics.spark.places import Loss
from topics.spark.rest_origin import RestOrigin
from topics.spark.rest_state import read_state
from topics.spark.rows import Rows, project
from topics.spark.schema import Projection, make_projection
from topics.storage.opening import open_store
from topics.testing.disk import FakeDisk
from topics.testing.ids import FakeIds

Told = tuple[dict[str, list[Item]], dict[str, int]]
"""Records and gaps by topic, and heads."""


class WatchedSimulation(Simulation):
    """Before every start of the store the directory is read as it lies there."""

    def open(self, final: bool = False) -> None:
        if self.disk.exists(f"{ROOT}/meta/FORMAT"):
            self.counts["compared"] += 1
            self._compare_readers()
        super().open(final)

    def _compare_readers(self) -> None:
        """The same records, gaps and heads; or both refuse a directory that a broken device damaged."""
        try:
            recovered: Told | None = self._recovered()
        except StorageError:
            recovered = None
        try:
            found: Told | None = read_rest(self.disk.clone())
        except (StorageError, FileNotFoundError):
            found = None
        self.counts["refused"] += recovered is None
        assert found == recovered, f"seed {self.seed}, life {self.life}"

    def _recovered(self) -> Told:
        options = replace(self.profile.options(self.life), recovery="strict")
        store = open_store(
            self.disk.clone(), ROOT, options, copy.copy(self.clock), FakeIds(1), contextlib.nullcontext()
        )
        told = {name: sorted(map(item_of, read_all(store, name)), key=place) for name in store.topics}
        heads = {name: topic.head for name, topic in store.topics.items()}
        store.release()
        return told, heads


def read_rest(disk: FakeDisk) -> Told:
    origin = RestOrigin(ROOT, fs=disk)
    state = origin._state = read_state(disk, ROOT)
    wanted = Wanted(projection().want, True, Filter())
    found: dict[str, list[Item]] = {}
    for name, topic in state.topics.items():
        plan = origin.plan(name, topic.id, 1, topic.head + 1)
        items = [("gap", loss.gap_from, loss.gap_to, loss.reason) for loss in plan.losses]
        for span in plan.spans:
            for item in origin._read_span(span, wanted):
                if isinstance(item, Rows):
                    items += items_of_batches([project(item, projection())])
                else:
                    assert not isinstance(item, Loss)
                    items.append(("gap", item.seq, item.seq, "corrupt"))
        found[name] = sorted(items, key=place)
    return found, {name: topic.head for name, topic in state.topics.items()}


def projection() -> Projection:
    from tests.spark.readers import schema_of

    options = {"path": ROOT, "topic": "any"}
    return make_projection(parse_options(options), schema_of(options))


@pytest.mark.parametrize("stages", [False, True])
@pytest.mark.parametrize("seed", range(SEED, SEED + 4))
def test_a_directory_at_rest_is_read_as_the_store_recovers_it(seed: int, stages: bool) -> None:
    assert WatchedSimulation(seed, {"stages": stages}).run().counts["compared"] >= 3
