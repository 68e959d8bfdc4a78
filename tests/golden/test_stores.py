"""What an earlier version wrote, this one reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.golden.make_store import HERE, open_golden, show
from topics.format.frame import BadFrame, Kind, decode_frame

STORES = sorted(path.stem for path in HERE.glob("store-v*.json"))


def expected(name: str) -> Any:
    return msgspec.json.decode((HERE / f"{name}.json").read_bytes())


def known(found: Any, name: str) -> Any:
    """What was found, without what no version knew of at the time the store was written."""
    for topic, row in expected(name)["topics"].items():
        config = found["topics"][topic]["config"]
        found["topics"][topic]["config"] = {field: config.get(field) for field in row["config"]}
    return found


@pytest.mark.parametrize("shards", [2, 1, 3])
@pytest.mark.parametrize("name", STORES)
def test_store_of_an_earlier_version_gives_exactly_what_was_written(name: str, shards: int, tmp_path: Path) -> None:
    with open_golden(HERE / name, tmp_path, shards) as log:
        assert known(show(log), name) == expected(name)


@pytest.mark.parametrize("name", STORES)
def test_store_of_an_earlier_version_takes_writes_and_opens_again(name: str, tmp_path: Path) -> None:
    with open_golden(HERE / name, tmp_path) as log:
        head = log.info("orders").head_seq
        assert log.append("orders", [{"data": "new"}]).first_seq == head + 1
    with open_golden(tmp_path / name, tmp_path / "again") as log:
        found = known(show(log), name)
    wanted = expected(name)
    assert found["topics"]["orders"].pop("items")[:-1] == wanted["topics"]["orders"].pop("items")
    changed = {"head", "count", "bytes", "last_ts"}
    for field in changed:
        del found["topics"]["orders"][field], wanted["topics"]["orders"][field]
    assert found == wanted


def test_newest_store_holds_every_kind_of_frame() -> None:
    kinds: set[Kind] = set()
    for path in (HERE / STORES[-1]).glob("wal/shard-*/wal-*.log"):
        data, at = path.read_bytes(), 0
        while at < len(data):
            try:
                frame = decode_frame(data, at, len(data))
            except BadFrame:
                break
            kinds.add(frame.kind)
            at = frame.end
    assert set(Kind) - kinds == set()
