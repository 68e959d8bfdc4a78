"""What was sent, as a reader should get it back."""

from __future__ import annotations

from typing import Any

import msgspec

from topics.model.record import Record


def sent(record: dict[str, Any], seq: int, ts: int) -> Record:
    meta = record.get("meta")
    meta_raw = None if meta is None else msgspec.json.encode(meta)
    return Record(seq, ts, record.get("tag"), record.get("node"), record.get("key"), meta_raw, record["data"])
