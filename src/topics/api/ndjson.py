"""Lines of JSON: one record a line, empty lines passed over."""

from __future__ import annotations

from topics.api.wire import RecordIn, decode_record
from topics.model import limits
from topics.model.errors import BatchTooLarge


def records_of_lines(body: bytes) -> list[RecordIn]:
    records: list[RecordIn] = []
    for line in body.split(b"\n"):
        if line and not line.isspace():
            if len(records) == limits.RECORDS_PER_BULK_APPEND:
                raise BatchTooLarge(f"more than {limits.RECORDS_PER_BULK_APPEND} lines in one append")
            records.append(decode_record(line, len(records)))
    return records
