"""A store at rest loses a byte. What it may do then: refuse, naming a file, or serve only what is right."""

from __future__ import annotations

from dataclasses import dataclass

from tests.crash.ledger import read_all
from tests.crash.life import ROOT, Life
from topics.model.errors import TopicsError
from topics.model.record import Gap, Record


@dataclass
class Content:
    """What a whole store serves: topic name -> seq -> (payload, tag)."""

    records: dict[str, dict[int, tuple[bytes, str | None]]]

    @classmethod
    def of(cls, life: Life) -> Content:
        return cls({name: _records(read_all(life.store, name)) for name in sorted(life.store.topics)})


def _records(items: list[Record | Gap]) -> dict[int, tuple[bytes, str | None]]:
    return {item.seq: (item.raw, item.tag) for item in items if isinstance(item, Record)}


def verdict(life: Life, whole: Content, may_lose: frozenset[tuple[str, int]] = frozenset()) -> str:
    """Open the damaged store: "refused" or "served". Anything but an honest answer is an AssertionError."""
    refusal = None
    try:
        life.open()
    except TopicsError as error:
        refusal = error.message
    if refusal is not None:
        assert ROOT in refusal, f"the refusal names no file: {refusal}"
        return "refused"
    assert sorted(life.store.topics) == sorted(whole.records), f"topics: {sorted(life.store.topics)}"
    for name, wanted in whole.records.items():
        items = read_all(life.store, name)
        got = _records(items)
        gaps = [item for item in items if isinstance(item, Gap)]
        for seq, value in got.items():
            assert wanted.get(seq) == value, f"{name} {seq}: served {value}, stored {wanted.get(seq)}"
        for seq in wanted.keys() - got.keys():
            said = any(gap.gap_from <= seq <= gap.gap_to for gap in gaps)
            assert said or (name, seq) in may_lose, f"{name} {seq} is gone, and nobody says so"
        for gap in gaps:
            if gap.reason == "corrupt":
                lost = [seq for seq in wanted if gap.gap_from <= seq <= gap.gap_to]
                assert len(lost) <= 1, f"{name}: one byte took the records {lost}"
    return "served"
