"""What the simulation's ledger of groups sees: leases of topics that lived in RAM, and of fetches that failed."""

from __future__ import annotations

import pytest

from tests.crash.groups import GroupLedger
from tests.unit.broker.engine import Bench
from topics.broker.group import Asked, Where
from topics.model.config import TopicConfig
from topics.model.errors import DiskFull
from topics.model.group import GroupConfig
from topics.storage import delete
from topics.storage.submission import Submission
from topics.testing.oracle import Violation


def told_of_acks(bench: Bench, ledger: GroupLedger) -> None:
    """Two of three records on disk are settled in RAM, and then the topic leaves it."""
    bench.append("t", 1, 2, 3, durability="disk")
    groups, who = bench.broker.groups, Asked("t", "g", "m")
    bench.run(groups.put("t", "g", GroupConfig(), Where("earliest")))
    bench.run(bench.broker.put_topic("t", TopicConfig(durability="ephemeral")))
    topic = bench.store.topic("t")
    ledger.begin_anew(topic, "g", 1, None, None)
    bench.clock.advance(1000)
    batch = bench.run(groups.fetch(who, 2, None, 0, None))
    ledger.fetched(groups.place("t", "g"), "m", batch.rows, groups.now(), None)
    seqs = [row[0] for row in batch.rows]
    bench.run(groups.ack(who, seqs, [None] * len(seqs), ()))
    ledger.topics[topic.id].groups["g"].acks.append((seqs, None))
    token = bench.store.configure("t", TopicConfig(durability="disk"))
    assert token is not None
    assert ledger.left_ram(topic, token) == 2
    bench.store.drive(token)


@pytest.mark.parametrize("logged", [True, False])
def test_an_ack_in_ram_holds_once_its_topic_has_left_it(logged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not logged:
        monkeypatch.setattr(delete, "kept_frames", lambda topic, mono_ms: [])
    bench, ledger = Bench(wal_shards=1), GroupLedger()
    told_of_acks(bench, ledger)
    bench.disk.kill()
    bench.disk.restart()
    bench.open()
    if logged:
        assert ledger.check_recovered(bench.store, False, False, False, False) == 2
    else:
        with pytest.raises(Violation, match="was settled in 'g', and is not any more"):
            ledger.check_recovered(bench.store, False, False, False, False)


@pytest.mark.parametrize("failed", [True, False])
def test_a_record_may_go_to_the_next_who_asks_where_the_fetch_that_took_it_failed(failed: bool) -> None:
    bench, ledger = Bench(wal_shards=1), GroupLedger()
    bench.append("t", 1)
    groups = bench.broker.groups
    bench.run(groups.put("t", "g", GroupConfig(), Where("earliest")))
    place, fetch = groups.place("t", "g"), Submission(1, [], lambda _: None, needs_sync=False)
    ledger.fetched(place, "a", [(1, 1, 60_000, 1)], groups.now(), fetch)
    if failed:
        fetch.fail(DiskFull("no next WAL file"))
        ledger.fetched(place, "b", [(1, 2, 60_000, 1)], groups.now(), None)
    else:
        with pytest.raises(Violation, match="record 1 went to 'b' while 'a' holds it"):
            ledger.fetched(place, "b", [(1, 2, 60_000, 1)], groups.now(), None)
