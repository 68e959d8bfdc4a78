"""Every limit that bounds memory or input, with its reason."""

from __future__ import annotations

from typing import Final

RECORDS_PER_APPEND: Final = 10_000
"""One append is one submission held in memory whole; the wire promises the same number."""

RECORDS_PER_BULK_APPEND: Final = 100_000
"""The bulk body forms: still one submission, of at most one body."""

ARROW_BYTES: Final = 64 * 1024 * 1024
ARROW_VALUES: Final = 2_000_000
"""What the columns of an Arrow body come to: bytes once inflated, and values of one column with all within them. Each
value becomes an object of some 50 bytes on its way, whatever it took in the body."""

RECORD_BYTES: Final = 1_048_576
"""`data` + `meta` of one record. Keeps the 24-bit size column of `.idx` wide enough by a factor of 16."""

META_BYTES: Final = 16_384
META_KEYS: Final = 64
"""Meta is read on scans that skip `data`; it must stay small."""

TAG_BYTES: Final = 256
NODE_BYTES: Final = 128
KEY_BYTES: Final = 512
IDEMPOTENCY_KEY_BYTES: Final = 256
TOPIC_NAME_BYTES: Final = 255

PART_BYTES: Final = 32 * 1024 * 1024
PART_RECORDS: Final = 100_000
"""One staged part: it is encoded in memory whole."""

PARTS_PER_TXN: Final = 100_000
"""A commit names its parts in one frame of the WAL."""

JSON_DEPTH: Final = 124
"""Nesting of `data` and `meta`: a request of 128 levels holds them four levels down."""

FRAME_BYTES: Final = 64 * 1024 * 1024
"""No frame is longer, so a garbled length never asks for more memory than this."""

APPEND_BYTES: Final = (1 << 32) - 2 * FRAME_BYTES
"""Frames of one append. Offsets in a WAL file have 32 bits, and the file of a large batch holds other frames with it:
the mark in front, the idempotency key, the delays of jobs (one frame), what a cap evicts."""

HEADS_TOPICS: Final = 10_000
"""Topics in one question about heads: all of them are looked at in one step, while everybody else waits."""

DELETE_RANGES: Final = 1_000_000
"""Ranges in one Delete frame (16 MB); a larger delete is several frames."""

DEDUPE_KEYS: Final = 100_000
"""Idempotency keys remembered per topic, oldest out first."""

SHARD_QUEUE_SUBMISSIONS: Final = 4096
SHARD_QUEUE_BYTES: Final = 64 * 1024 * 1024
"""What may wait in front of one WAL shard; beyond it embedded appends wait and HTTP answers 429."""

COMMIT_SUBMISSIONS: Final = 4096
COMMIT_BYTES: Final = 8 * 1024 * 1024
"""What one write takes from the queue: large enough to amortise a sync, small enough to bound its time."""

WAL_SHARDS: Final = 64
"""Shard directories have two digits; beyond a few dozen, shards only cost file handles."""

OPEN_FILES: Final = 128
"""Segment files kept open, least recently used out first. Each holds a file descriptor, of which a process has 1024
unless it asks for more, and an embedded store is a guest in its process."""

OPEN_MAPPINGS: Final = 16_384
"""Mapped segment files, least recently used out first. A mapping holds no descriptor, only address space and one of the
65,530 mappings that Linux gives a process."""

FRESH_BYTES: Final = 256 * 1024 * 1024
"""Sealed segments that stay in memory because they are new; older ones stay only if somebody reads them."""

BURST_BYTES: Final = 128 * 1024 * 1024
BURST_FRESH_BYTES: Final = 32 * 1024 * 1024
"""Of a topic that brings more than the first to one checkpoint only this much stays in memory: the rest is written past
the cache. Readers that far behind so fast a writer read from the disk; memory for all of it would cost the writer more
than the writing."""

SEQ: Final = (1 << 64) - 2
"""The last seq that a topic gives: the one behind it, which a cursor or a delete may name, still has 64 bits."""

HOLE_RUN: Final = 4096
"""A gap in seqs up to this is hole entries in `.idx` (80 KiB at most); a larger one starts a new segment."""

DELAY_MS: Final = 86_400_000
LEASE_MS: Final = 86_400_000
"""The longest delay of a job and the longest lease: whoever wants more asks again within the day."""

FETCH_BYTES: Final = 8 * 1024 * 1024
"""What one claim or fetch gives at most, its first record whatever its size: an answer is rendered in memory whole,
while everybody else waits. The same as of a diff."""

SEQS_PER_CALL: Final = 1000
"""Jobs that one ack, nack or extend names: it is judged in one go."""

GROUPS_PER_TOPIC: Final = 1000
MEMBERS_PER_GROUP: Final = 1000
"""Each is looked at when sessions end and when retention asks what is held."""

GROUP_PENDING: Final = 10_000_000
"""The most that a group may be allowed to have pending: each entry takes some 300 bytes of memory."""
