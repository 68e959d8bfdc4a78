from collections.abc import Callable, Mapping, Sequence
from typing import Any

from topics.format.append_columns import ColumnBatch
from topics.format.checksum import Buffer
from topics.format.columns import Columns
from topics.format.decode import Decoded
from topics.format.prepared import Prepared, WalScan
from topics.model.leaserows import LeaseRow

def xxh3_64(buf: Buffer) -> int: ...
def compact_json(text: bytes, depth_max: int) -> bytes: ...
def compact_body(text: bytes, depth_max: int, names: tuple[bytes, ...]) -> tuple[bytes, bool]: ...
def split_envelope(body: bytes) -> tuple[str | None, bytes | None, bytes]: ...
def prepare(
    records: Sequence[Mapping[str, Any]],
    *,
    default_node: str | None = None,
    checked: bool = False,
    strict_fields: bool = True,
    frames_max: int = ...,
) -> Prepared: ...

class Gather:
    @property
    def size(self) -> int: ...
    def add(self, text: bytes, start: int, count_max: int) -> int: ...
    def take(self) -> Prepared: ...

def prepare_body(text: bytes, count_max: int) -> tuple[Prepared, bytes, bool] | None: ...
def prepare_columns(batches: Sequence[ColumnBatch], default_node: str | None = None) -> Prepared | None: ...
def stamp(
    frames: bytearray,
    entries: bytearray,
    count: int,
    topic_id: int,
    first_seq: int,
    ts: int,
    durable: bool,
    more_last: bool,
    ends: bytes | None = None,
) -> None: ...
def rebase(entries: bytearray, start_index: int, count: int, delta: int) -> None: ...
def scan_wal(buf: Buffer, start: int, end: int, entries: bytearray) -> WalScan: ...
def find_sync_marks(buf: Buffer, start: int, end: int, file_number: int) -> list[tuple[int, int]]: ...
def find_frames(buf: Buffer, start: int, end: int) -> int: ...
def restamp(
    buf: Buffer,
    entries: Buffer,
    start_index: int,
    count: int,
    first_seq: int,
    topic_id: int,
    dead: bytes | None,
    data_out: bytearray,
    idx_out: bytearray,
    data_base: int = 0,
) -> int: ...
def stage_frames(frames: bytearray, entries: bytearray, count: int) -> bytes: ...
def index_staged(buf: Buffer, start: int, end: int, ts: int, entries: bytearray) -> tuple[int, int]: ...
def restamp_staged(
    buf: Buffer,
    entries: Buffer,
    start_index: int,
    count: int,
    first_seq: int,
    dead: bytes | None,
    data_out: bytearray,
    idx_out: bytearray,
    data_base: int = 0,
    base: int = 0,
) -> int: ...
def measure_entries(entries: Buffer, count: int, dead: bytes | None) -> tuple[int, int]: ...
def find_blank(entries: Buffer, count: int) -> int: ...
def find_runs(entries: Buffer, count: int, bytes_max: int, far: int) -> list[tuple[int, int, int, int]]: ...
def verify(
    buf: Buffer, entries: Buffer, start_index: int, count: int, first_seq: int, layout: int, topic_id: int, base: int
) -> int: ...
def make_records(
    buf: Buffer,
    entries: Buffer,
    start_index: int,
    count: int,
    first_seq: int,
    layout: int,
    base: int,
    dead: bytes | None,
    record_type: Callable[..., Any],
) -> list[Any]: ...
def collect_tags(
    buf: Buffer, entries: Buffer, start_index: int, count: int, layout: int, base: int
) -> list[bytes | None]: ...
def collect_keys(
    buf: Buffer, entries: Buffer, start_index: int, count: int, layout: int, base: int
) -> list[bytes | None]: ...
def is_keyless(buf: Buffer, entries: Buffer, start_index: int, count: int, layout: int, base: int) -> bool: ...
def collect_columns(
    buf: Buffer,
    entries: Buffer,
    start_index: int,
    count: int,
    first_seq: int,
    layout: int,
    base: int,
    dead: bytes | None,
) -> Columns: ...
def render_ack(
    start: bytes,
    topic: bytes,
    first: int,
    count: int,
    seqs: bool,
    created: bool,
    deduped: bool,
    synced: bool,
    waited_ns: int,
    total_ns: int,
) -> bytes: ...
def pack_leases(rows: Sequence[LeaseRow], start: int, shift: int) -> bytes: ...
def rebuild_idx(data: Buffer, first_seq: int, end: int) -> tuple[bytes, int, int]: ...
def render_json(
    buf: Buffer,
    entries: Buffer,
    start_index: int,
    count: int,
    first_seq: int,
    layout: int,
    base: int,
    dead: bytes | None,
    want: int,
    exclude_nodes: tuple[bytes, ...],
    limit: int,
    budget: int,
    forced: bool,
    separator: int,
    leases: Sequence[LeaseRow] = (),
    deadline: int = 0,
) -> tuple[bytes, int, int, int]: ...
def decode_columns(
    buf: Buffer,
    entries: Buffer,
    start_index: int,
    count: int,
    first_seq: int,
    layout: int,
    topic_id: int,
    base: int,
    dead: bytes | None,
    want: int,
    check: bool,
    tag: bytes | None = None,
    tag_prefix: bool = False,
    node: bytes | None = None,
    key: bytes | None = None,
) -> Decoded: ...
