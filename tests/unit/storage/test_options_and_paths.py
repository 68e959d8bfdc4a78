from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from topics.model.config import Durability, check_topic_name, make_config
from topics.model.errors import InvalidRequest
from topics.storage import paths
from topics.storage.options import StoreOptions, make_options


@pytest.mark.parametrize(
    "given",
    [
        {"wal_shards": 0},
        {"wal_shards": 65},
        {"wal_file_bytes": 1023},
        {"segment_max_events": 0},
        {"reserve_seqs": 0},
        {"sync_ms": -1},
        {"wal_shards": "2"},
        {"wal_shards": True},
        {"checkpoint_ms": 1.5},
        {"recovery": "hope"},
        {"shards": 2},
    ],
    ids=str,
)
def test_a_bad_option_is_named(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make_options(given)
    assert next(iter(given)) in caught.value.message


def test_an_internal_option_is_taken_and_not_named_to_those_who_misspell_one() -> None:
    assert make_options({"wal_filled_bytes": 2048}).wal_filled_bytes == 2048
    with pytest.raises(InvalidRequest, match="wal_file_bytes") as caught:
        make_options({"wal_filled_byte": 2048})
    assert "wal_filled_bytes" not in caught.value.message
    with pytest.raises(InvalidRequest, match="wal_filled_bytes"):
        make_options({"wal_filled_bytes": 1023})


def test_every_option_has_a_default_that_is_valid() -> None:
    assert make_options({}) == StoreOptions()
    for field in fields(StoreOptions):
        assert make_options({field.name: getattr(StoreOptions(), field.name)}) == StoreOptions()


@pytest.mark.parametrize(
    "given",
    [
        {"cap_records": -1},
        {"ttl_ms": 1 << 64},
        {"discard": "new"},
        {"durability": "forever"},
        {"durable": "yes"},
        {"priority": 1 << 40},
        {"dead_letter": "../x"},
        {"cap": 5},
        {"type": "stream"},
    ],
    ids=str,
)
def test_a_bad_config_field_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        make_config(given)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, Durability.DISK),
        ({"durable": True}, Durability.FSYNC),
        ({"durable": True, "durability": "memory"}, Durability.MEMORY),
        ({"durability": "ephemeral"}, Durability.EPHEMERAL),
    ],
    ids=str,
)
def test_durability_wins_over_durable(given: dict[str, Any], wanted: Durability) -> None:
    config = make_config(given)
    assert config.commit_class == wanted
    assert config.durability == wanted.name.lower()
    assert config.durable == (wanted == Durability.FSYNC)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\0", "-a", "a b", "ä", "a" * 256, 5, None, "a\n"])
def test_a_bad_topic_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidRequest):
        check_topic_name(name)


@pytest.mark.parametrize("name", ["a", "A.b_c:d-e", "9", "a" * 255, "CON", "a..b"])
def test_a_good_topic_name_passes(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize("number", [0, 1, 9_999_999_999_999_999, 10**19])
def test_numbers_in_names_come_back(number: int) -> None:
    assert paths.wal_number(paths.wal_name(number)) == number
    assert paths.snapshot_number(paths.snapshot_name(number)) == number
    assert paths.segment_first(paths.segment_name(number, "data")) == number


@pytest.mark.parametrize(
    "name", ["wal-1.log", "wal-0000000000000001.log.tmp", "wal--000000000000001.log", "xwal-0000000000000001.log", ""]
)
def test_names_that_only_look_like_ours_are_not(name: str) -> None:
    assert paths.wal_number(name) is None


def test_topic_ids_are_hex_of_eight_digits_or_more() -> None:
    root = paths.Paths("/data")
    assert root.topic(1) == "/data/topics/00000001"
    assert root.topic(0xABCDEF) == "/data/topics/00ABCDEF"
    assert root.topic((1 << 64) - 1) == "/data/topics/FFFFFFFFFFFFFFFF"
    assert paths.topic_of("00ABCDEF") == 0xABCDEF
    assert paths.topic_of("00abcdef") is None
    assert paths.topic_of("00ABCDEF.deleted") is None
    assert paths.topic_of("ABC") is None


def test_one_shard_lies_flat_and_several_have_directories() -> None:
    root = paths.Paths("/data")
    assert root.group(paths.group_key(0, 1)) == "/data/wal"
    assert root.group(paths.group_key(3, 8)) == "/data/wal/shard-03"
    assert paths.is_group("shard-03")
    assert not paths.is_group("shard-3")
    assert not paths.is_group("shard-003")
