"""The batch functions of this process: the kernel's where it was built, else their Python twins."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Final

from topics.format import batchops as reference
from topics.format.batchops import SEGMENT_LAYOUT, WAL_LAYOUT

kernel: ModuleType | None
try:
    from topics.format import kernel as _kernel
except ImportError as _error:
    kernel = None
    from topics.format.batchops import (
        Gather,
        collect_columns,
        collect_keys,
        collect_tags,
        compact_body,
        compact_json,
        decode_columns,
        find_blank,
        find_frames,
        find_runs,
        find_sync_marks,
        index_staged,
        is_keyless,
        make_records,
        measure_entries,
        pack_leases,
        prepare,
        prepare_body,
        prepare_columns,
        rebase,
        rebuild_idx,
        render_ack,
        render_json,
        restamp,
        restamp_staged,
        scan_wal,
        split_envelope,
        stage_frames,
        stamp,
        verify,
        xxh3_64,
    )

    warnings.warn(
        f"topics runs without its compiled kernel ({_error}): batches are 20 to 150 times slower. "
        "Install a C compiler and reinstall to build it.",
        RuntimeWarning,
        stacklevel=2,
    )
else:
    kernel = _kernel
    from topics.format.kernel import (  # type: ignore[assignment]
        Gather,
        collect_columns,
        collect_keys,
        collect_tags,
        compact_body,
        compact_json,
        decode_columns,
        find_blank,
        find_frames,
        find_runs,
        find_sync_marks,
        index_staged,
        is_keyless,
        make_records,
        measure_entries,
        pack_leases,
        prepare,
        prepare_body,
        prepare_columns,
        rebase,
        rebuild_idx,
        render_ack,
        render_json,
        restamp,
        restamp_staged,
        scan_wal,
        split_envelope,
        stage_frames,
        stamp,
        verify,
        xxh3_64,
    )

KERNEL: Final[bool] = kernel is not None

__all__ = [
    "KERNEL",
    "SEGMENT_LAYOUT",
    "WAL_LAYOUT",
    "Gather",
    "collect_columns",
    "collect_keys",
    "collect_tags",
    "is_keyless",
    "compact_body",
    "compact_json",
    "decode_columns",
    "find_blank",
    "find_frames",
    "find_runs",
    "find_sync_marks",
    "index_staged",
    "kernel",
    "make_records",
    "measure_entries",
    "pack_leases",
    "prepare",
    "prepare_body",
    "prepare_columns",
    "rebase",
    "rebuild_idx",
    "render_ack",
    "render_json",
    "reference",
    "restamp",
    "restamp_staged",
    "scan_wal",
    "split_envelope",
    "stage_frames",
    "stamp",
    "verify",
    "xxh3_64",
]
