"""The public interface on a real directory: what each call does and answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import topics
from tests.integration.conftest import Opener

Log = topics.Log


def seqs(log: Log, topic: str, from_seq: int = 0) -> list[int]:
    return [item.seq for item in log.read(topic, from_seq) if isinstance(item, topics.Record)]


def view(log: Log, topic: str, limit: int | None = None) -> list[object]:
    """Seqs of records, and gaps as they are."""
    return [item if isinstance(item, topics.Gap) else item.seq for item in log.read(topic, limit=limit)]


def fill(log: Log, topic: str, count: int, tag: str | None = None) -> None:
    log.append(topic, [{"data": n, "tag": tag} for n in range(count)])


# -- topics ------------------------------------------------------------------------------------------------------------


def test_creating_a_topic_says_whether_it_is_new(log: Log) -> None:
    assert log.create("orders") is True
    assert log.create("orders") is False
    assert log.topics() == ["orders"]


def test_topics_are_listed_in_the_order_of_their_names(log: Log) -> None:
    for name in ("b", "c", "a"):
        log.create(name)
    assert log.topics() == ["a", "b", "c"]


def test_creating_an_existing_topic_gives_it_the_new_config(log: Log) -> None:
    log.create("orders", cap_records=5, ttl_ms=1000)
    log.create("orders", cap_records=7)
    config = log.info("orders").config
    assert (config.cap_records, config.ttl_ms) == (7, 0)


def test_creating_an_existing_topic_with_another_type_is_refused(log: Log) -> None:
    log.create("orders")
    with pytest.raises(topics.TopicExists, match=r"'orders' is a log; it cannot become a queue"):
        log.create("orders", type="queue")
    assert log.info("orders").config.type == "log"


def test_configure_changes_only_the_given_fields(log: Log) -> None:
    log.create("orders", cap_records=5, durability="fsync")
    config = log.configure("orders", ttl_ms=1000)
    assert (config.cap_records, config.ttl_ms, config.durability) == (5, 1000, "fsync")
    assert log.info("orders").config == config


def test_configure_with_durable_sets_the_class(log: Log) -> None:
    log.create("orders", durability="memory")
    assert log.configure("orders", durable=True).durability == "fsync"
    assert log.configure("orders", durable=False).durability == "disk"


def test_config_survives_a_reopen(reopen: Opener) -> None:
    log = reopen()
    log.create("orders", cap_records=5)
    log.configure("orders", durability="fsync")
    before = log.info("orders")
    assert reopen().info("orders") == before


def test_a_new_topic_is_empty(log: Log) -> None:
    log.create("orders")
    info = log.info("orders")
    assert (info.head_seq, info.next_seq, info.earliest_seq, info.count, info.bytes) == (0, 1, 1, 0, 0)
    assert info.last_write_ts is None
    assert info.read_only is False
    assert info.trouble is None
    assert list(log.read("orders")) == []


def test_info_counts_records_and_bytes(log: Log) -> None:
    log.create("orders")
    done = log.append("orders", [{"data": b'{"a": 1}'}, {"data": 12, "meta": {"k": 1}}])
    info = log.info("orders")
    assert (info.head_seq, info.count, info.bytes) == (2, 2, len('{"a":1}') + len("12") + len('{"k":1}'))
    assert info.last_write_ts == done.ts
    assert info.created_ts <= done.ts


@pytest.mark.parametrize("call", ["append", "read", "delete", "info", "configure", "get"])
def test_a_topic_that_does_not_exist_is_named_in_the_error(log: Log, call: str) -> None:
    calls: dict[str, Callable[[], object]] = {
        "append": lambda: log.append("nope", [{"data": 1}]),
        "read": lambda: log.read("nope"),
        "delete": lambda: log.delete("nope", before_seq=1),
        "info": lambda: log.info("nope"),
        "configure": lambda: log.configure("nope", ttl_ms=1),
        "get": lambda: log.get("nope", 1),
    }
    with pytest.raises(topics.TopicNotFound, match="topic 'nope' does not exist; create it first") as caught:
        calls[call]()
    assert caught.value.topic == "nope"


def test_dropping_a_topic_removes_it_and_its_files(log: Log, data: Path) -> None:
    log.create("orders")
    fill(log, "orders", 10)
    log.checkpoint()
    assert list(data.glob("topics/*/seg-*"))
    assert log.drop("orders") is True
    assert log.topics() == []
    assert log.drop("orders") is False
    log.checkpoint()
    assert list(data.glob("topics/*")) == []


def test_dropping_only_if_empty_keeps_a_topic_with_records(log: Log) -> None:
    log.create("orders")
    fill(log, "orders", 3)
    with pytest.raises(topics.TopicNotEmpty, match="'orders' holds 3 records"):
        log.drop("orders", if_empty=True)
    log.delete("orders", before_seq=4)
    assert log.drop("orders", if_empty=True) is True


def test_a_topic_made_again_is_another_topic(reopen: Opener) -> None:
    log = reopen()
    log.create("orders")
    fill(log, "orders", 5)
    first = log.info("orders").epoch
    log.drop("orders")
    log.create("orders")
    assert log.info("orders").epoch > first
    assert log.append("orders", [{"data": "new"}]).first_seq == 1
    log = reopen()
    assert [item.data for item in log.read("orders") if isinstance(item, topics.Record)] == ["new"]
    assert log.info("orders").epoch > first


def test_a_cursor_beyond_the_head_is_told_that_the_topic_is_another(log: Log) -> None:
    log.create("orders")
    fill(log, "orders", 3)
    items = list(log.read("orders", from_seq=10))
    assert items[0] == topics.Gap(1, 3, "recreated")
    assert [item.seq for item in items[1:] if isinstance(item, topics.Record)] == [1, 2, 3]


def test_a_cursor_beyond_an_empty_topic_is_told_so_once_and_may_go_on_from_the_gap(log: Log) -> None:
    log.create("orders")
    (gap,) = log.read("orders", from_seq=10)
    assert isinstance(gap, topics.Gap)
    assert (gap, gap.missed) == (topics.Gap(1, 0, "recreated"), 0)
    assert list(log.read("orders", from_seq=gap.gap_to)) == []
    fill(log, "orders", 2)
    assert [item.seq for item in log.read("orders", from_seq=gap.gap_to) if isinstance(item, topics.Record)] == [1, 2]


# -- append and read ---------------------------------------------------------------------------------------------------


def test_an_append_answers_the_seqs_of_its_batch(log: Log) -> None:
    log.create("orders")
    done = log.append("orders", [{"data": n} for n in range(3)])
    assert (done.topic, done.first_seq, done.last_seq, done.count, done.deduped) == ("orders", 1, 3, 3, False)
    assert log.append("orders", [{"data": 0}]).first_seq == 4


def test_reading_gives_what_lies_after_the_cursor(log: Log) -> None:
    log.create("orders")
    fill(log, "orders", 10)
    assert seqs(log, "orders") == list(range(1, 11))
    assert seqs(log, "orders", 7) == [8, 9, 10]
    assert seqs(log, "orders", 10) == []


@pytest.mark.parametrize("limit", [1, 4, 100])
def test_reading_with_a_limit_gives_no_more_records(log: Log, limit: int) -> None:
    log.create("orders")
    fill(log, "orders", 10)
    log.delete("orders", before_seq=3)
    assert view(log, "orders", limit) == list(range(3, min(3 + limit, 11)))


def test_reading_goes_to_the_head_of_the_moment_it_began(log: Log) -> None:
    log.create("orders")
    fill(log, "orders", 3)
    reading = log.read("orders")
    fill(log, "orders", 3)
    assert len(list(reading)) == 3


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_records_of_every_class_are_readable_at_once(log: Log, durability: str) -> None:
    log.create("orders", durability=durability)
    fill(log, "orders", 100)
    assert seqs(log, "orders") == list(range(1, 101))
    log.checkpoint()
    fill(log, "orders", 100)
    assert seqs(log, "orders") == list(range(1, 201))


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_a_clean_close_keeps_every_record_and_skips_no_seq(reopen: Opener, durability: str) -> None:
    log = reopen()
    log.create("orders", durability=durability)
    fill(log, "orders", 100)
    log = reopen()
    assert seqs(log, "orders") == list(range(1, 101))
    assert log.append("orders", [{"data": 1}]).first_seq == 101
    assert log.recovery_report == []


def test_records_are_read_from_wal_active_and_sealed_segments(reopen: Opener) -> None:
    log = reopen(segment_max_events=40)
    log.create("orders")
    for _ in range(3):
        fill(log, "orders", 50)
        log.checkpoint()
    fill(log, "orders", 50)
    assert log.info("orders").segments == 4
    items = [item for item in log.read("orders") if isinstance(item, topics.Record)]
    assert [item.seq for item in items] == list(range(1, 201))
    assert [item.data for item in items] == list(range(50)) * 4
    for seq in (1, 40, 41, 130, 150, 151, 200):
        assert log.get("orders", seq).data == (seq - 1) % 50


def test_frame_batches_hold_the_same_records(log: Log) -> None:
    log.create("orders")
    fill(log, "orders", 20)
    log.delete("orders", before_seq=5)
    batches = [item for item in log.read_batches("orders", limit=7) if not isinstance(item, topics.Gap)]
    assert all(batch.count <= 7 for batch in batches)
    assert [record.seq for batch in batches for record in batch.records()] == list(range(5, 21))


def test_getting_one_record_says_what_is_not_there(log: Log) -> None:
    log.create("orders")
    fill(log, "orders", 3)
    log.delete("orders", before_seq=2)
    assert log.get("orders", 2).data == 1
    for seq in (0, 1, 4):
        with pytest.raises(topics.NotFound, match=f"topic 'orders' has no live record {seq}"):
            log.get("orders", seq)


# -- delete ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [False, True])
def test_deleting_before_a_seq_is_silent_and_for_good(reopen: Opener, copied: bool) -> None:
    log = reopen(segment_max_events=4)
    log.create("orders")
    fill(log, "orders", 10)
    if copied:
        log.checkpoint()
    done = log.delete("orders", before_seq=6)
    assert (done.deleted, done.earliest_seq, done.head_seq) == (5, 6, 10)
    assert log.delete("orders", before_seq=6).deleted == 0
    assert view(log, "orders") == [6, 7, 8, 9, 10]
    assert view(reopen(), "orders") == [6, 7, 8, 9, 10]


def test_deleting_beyond_the_head_stops_at_the_head(log: Log) -> None:
    log.create("orders")
    fill(log, "orders", 3)
    assert log.delete("orders", before_seq=100).deleted == 3
    assert log.append("orders", [{"data": 1}]).first_seq == 4
    assert seqs(log, "orders") == [4]


@pytest.mark.parametrize("copied", [False, True])
def test_deleting_by_tag_hits_equal_tags_or_a_prefix(reopen: Opener, copied: bool) -> None:
    log = reopen(segment_max_events=3)
    log.create("orders")
    log.append("orders", [{"data": n, "tag": tag} for n, tag in enumerate(("eu", "us", "eu.1", None, "eu", "eu.2"))])
    if copied:
        log.checkpoint()
    assert log.delete("orders", tag="eu").deleted == 2
    assert seqs(log, "orders") == [2, 3, 4, 6]
    assert log.delete("orders", tag="eu.*").deleted == 2
    assert log.delete("orders", tag="none").deleted == 0
    log.append("orders", [{"data": 7, "tag": "eu"}])
    assert seqs(reopen(), "orders") == [2, 4, 7]


def test_deleting_by_tag_before_a_seq_takes_both_as_conditions(log: Log) -> None:
    log.create("orders")
    log.append("orders", [{"data": n, "tag": "eu" if n % 2 else "us"} for n in range(10)])
    assert log.delete("orders", tag="eu", before_seq=6).deleted == 2
    assert seqs(log, "orders") == [1, 3, 5, 6, 7, 8, 9, 10]


# -- the store ---------------------------------------------------------------------------------------------------------


def test_everything_is_refused_after_close(log: Log) -> None:
    log.create("orders")
    fill(log, "orders", 3)
    reading = log.read("orders")
    log.close()
    calls = (
        lambda: log.append("orders", [{"data": 1}]), lambda: list(log.read("orders")), lambda: next(reading),
        lambda: log.create("x"), lambda: log.drop("orders"), lambda: log.info("orders"), lambda: log.topics(),
        lambda: log.delete("orders", before_seq=1), lambda: log.checkpoint(), lambda: log.get("orders", 1),
        lambda: log.configure("orders", ttl_ms=1),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(topics.StoreClosed):
            call()
    log.close()


def test_a_directory_is_opened_once_at_a_time(log: Log, data: Path) -> None:
    with pytest.raises(topics.StoreLocked, match="is open already"):
        topics.open(data)
    log.close()
    topics.open(data).close()


def test_open_makes_the_directory_and_its_parents(tmp_path: Path) -> None:
    with topics.open(tmp_path / "a" / "b" / "c") as log:
        log.create("orders")
    with topics.open(str(tmp_path / "a" / "b" / "c")) as log:
        assert log.topics() == ["orders"]


def test_a_store_keeps_its_identity(reopen: Opener) -> None:
    first = reopen().store_id
    assert len(first) == 32
    assert reopen().store_id == first


def test_the_shard_count_may_change_between_opens(reopen: Opener) -> None:
    for shards in (1, 4, 2, 1, 8):
        log = reopen(wal_shards=shards)
        for name in ("a", "b", "c", "d"):
            log.create(name)
            log.append(name, [{"data": shards}])
    for name in ("a", "b", "c", "d"):
        assert [item.data for item in log.read(name) if isinstance(item, topics.Record)] == [1, 4, 2, 1, 8]
        assert seqs(log, name) == [1, 2, 3, 4, 5]


def test_a_body_that_raises_still_closes_the_store(data: Path) -> None:
    def work() -> None:
        with topics.open(data):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    topics.open(data).close()
