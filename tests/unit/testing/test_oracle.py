"""The oracle, where two histories look the same."""

from __future__ import annotations

import pytest

from topics.model.config import TopicConfig, make_config
from topics.model.record import Record
from topics.storage.submission import State, Submission
from topics.testing.oracle import Oracle, Step
from topics.testing.plain import Appended, Deleted
from topics.testing.view import View


def submission(state: State) -> Submission:
    token = Submission(1, [b"frame"], lambda _: None, needs_sync=False)
    token.state = state
    return token


def record(seq: int, ts: int) -> Record:
    return Record(seq, ts, None, None, None, None, b"1")


def view(config: TopicConfig, last_ts: int) -> View:
    """Of a topic with its first record alone, and a head that a crash made jump."""
    first = record(1, 2)
    return View("t", 1, 20, config, 64, 1, 0, 0, 0, 1, len(first.raw), last_ts, [first], {}, {}, {})


@pytest.mark.parametrize("last_ts", [2, 12])
def test_an_append_and_the_delete_of_it_are_told_from_neither_by_the_time(last_ts: int) -> None:
    config = make_config({"durability": "disk"})
    oracle = Oracle()
    instance = oracle.create("t", config, submission(State.DONE))
    instance.add(Step(Appended([record(1, 2)]), submission(State.DONE), config.commit_class))
    oracle.settle()
    instance.add(Step(Appended([record(2, 12)]), submission(State.QUEUED), config.commit_class))
    instance.add(Step(Deleted(0, frozenset({2})), submission(State.QUEUED), config.commit_class))
    oracle._check_prefix(instance, view(config, last_ts), power=True, skip="silent", fallback=False)
    assert instance.base is not None
    assert instance.base.last_ts == last_ts
