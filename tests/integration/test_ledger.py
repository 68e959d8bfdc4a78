"""The ledger of the kill tests sees what it is there to see."""

from __future__ import annotations

from pathlib import Path

import pytest

import topics
from tests.integration.ledger import Journal, Ledger, check, configs, own, phoenix, records_of, tag_of


@pytest.fixture
def journals(tmp_path: Path) -> Path:
    (tmp_path / "journals").mkdir()
    return tmp_path / "journals"


@pytest.fixture
def work(log: topics.Log, journals: Path) -> topics.Log:
    """Two acked batches of thread 0 in its own topic, and one that was never answered."""
    for name, config in configs().items():
        log.create(name, **config)
    journal = Journal(journals, 1, 0)
    for number in (1, 4):
        journal.write("append", own(0), 1, number, 3, "-")
        done = log.append(own(0), records_of(1, 0, number, 3))
        journal.write("acked", done.first_seq)
    journal.write("append", own(0), 1, 7, 2, "key")
    return log


def test_a_store_that_kept_everything_passes(work: topics.Log, journals: Path) -> None:
    check(work, Ledger(journals))
    work.append(own(0), records_of(1, 0, 7, 2))
    check(work, Ledger(journals))
    batch = Ledger(journals).unanswered(0)
    assert batch is not None
    assert (batch.number, batch.count, batch.key) == (7, 2, "key")


def test_an_acked_record_that_is_missing_is_seen(work: topics.Log, journals: Path) -> None:
    work.delete(own(0), tag=tag_of((1, 0, 5)))
    with pytest.raises(AssertionError, match="lacks"):
        check(work, Ledger(journals))


def test_a_part_of_an_unanswered_batch_is_seen(work: topics.Log, journals: Path) -> None:
    work.append(own(0), records_of(1, 0, 7, 2)[:1])
    with pytest.raises(AssertionError, match="lacks"):
        check(work, Ledger(journals))


def test_a_record_that_came_twice_is_seen(work: topics.Log, journals: Path) -> None:
    work.append(own(0), records_of(1, 0, 4, 3))
    with pytest.raises(AssertionError, match="is in"):
        check(work, Ledger(journals))


def test_other_bytes_are_seen(work: topics.Log, journals: Path) -> None:
    record = records_of(1, 0, 7, 1)[0]
    work.append(own(0), [{**record, "data": bytes(str(record["data"])[2:-1].replace("pad", "PAD"), "ascii")}])
    with pytest.raises(AssertionError, match="other bytes"):
        check(work, Ledger(journals))


@pytest.mark.parametrize("how", ["tag", "before", "drop"])
def test_a_deleted_record_that_came_back_is_seen(work: topics.Log, journals: Path, how: str) -> None:
    """The journal says that it was deleted, and nobody did it."""
    journal = Journal(journals, 2, 0)
    topic = phoenix(0) if how == "drop" else own(0)
    if how == "drop":
        journal.write("append", topic, 2, 1, 3, "-")
        journal.write("acked", work.append(topic, records_of(2, 0, 1, 3)).first_seq)
    words = {"tag": ("tag", topic, "t0.*"), "before": ("before", topic, 3), "drop": ("drop", topic)}[how]
    journal.write(*words)
    check(work, Ledger(journals))
    journal.write("acked")
    with pytest.raises(AssertionError, match="came back"):
        check(work, Ledger(journals))


def test_a_reported_loss_is_seen(work: topics.Log, journals: Path) -> None:
    work.configure(own(0), cap_records=5)
    with pytest.raises(AssertionError, match="was lost"):
        check(work, Ledger(journals))
