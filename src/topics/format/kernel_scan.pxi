# Reading a WAL file whole. The twin of walscan.py.

cdef enum:
    SCAN_END
    SCAN_ZEROS
    SCAN_BAD
    SCAN_NO_MEMORY
    SYNC_MARK_FRAME = 71
    SYNC_MARK_BODY = 25
    SYNC_EXT = 2
    SEARCH_SMALL = 4096
    SEARCH_BYTES_MIN = 67108864
    SEARCH_BYTES_FACTOR = 16

cdef struct Item:
    # A run of Append frames, or (kind > 1) a control frame, where `count` holds its flags.
    uint64_t kind
    uint64_t topic_id
    uint64_t seq
    uint64_t count
    uint64_t entry_index
    uint64_t start
    uint64_t end
    uint64_t first_ts
    uint64_t last_ts
    uint64_t accounted

cdef struct Whole:
    # What was there when the last submission ended: an unfinished one is cut back to it.
    Py_ssize_t items
    Item last
    Py_ssize_t frames
    Py_ssize_t entry_bytes
    Py_ssize_t end


cdef bint all_zero(const uint8_t* p, Py_ssize_t size) noexcept nogil:
    while size >= 8:
        if load64(p):
            return False
        p += 8
        size -= 8
    while size:
        if p[0]:
            return False
        p += 1
        size -= 1
    return True


cdef int walk(
    const uint8_t* buf, Py_ssize_t start, Py_ssize_t end, uint64_t entry_index, Block* items, Block* entries,
    Whole* whole, Py_ssize_t* stop, bint* open_chain,
) noexcept nogil:
    """Why the walk ended. Items and entries hold all frames; `whole` says how many of them count."""
    cdef Py_ssize_t at = start, length, accounted, frames = 0, frames_end = min(end, <Py_ssize_t>U32_MAX)
    cdef const uint8_t* p
    cdef uint8_t* entry
    cdef Item* item = NULL
    cdef uint64_t topic_id, seq, ts
    whole.items = whole.frames = whole.entry_bytes = 0
    whole.end = start
    open_chain[0] = False
    while True:
        stop[0] = at
        if at == end:
            return SCAN_END
        p = buf + at
        length = plain_frame(p, frames_end - at) if at < frames_end else -1
        if length < 0:
            return SCAN_ZEROS if all_zero(p, end - at) else SCAN_BAD
        accounted = accounted_frame(p, length)
        if accounted < 0:
            return SCAN_BAD
        topic_id = load64(p + 6)
        seq = load64(p + 14)
        ts = load64(p + 22)
        if p[4] == APPEND:
            if accounted > ACCOUNTED_MAX:
                accounted = ACCOUNTED_MAX
            entry = grow(entries, ENTRY_SIZE)
            if entry == NULL:
                return SCAN_NO_MEMORY
            store_entry(entry, <uint32_t>at, <uint32_t>length, ts, p[5] & KEPT, accounted)
            if (
                item != NULL and item.kind == APPEND and item.topic_id == topic_id
                and item.seq + item.count == seq and seq > item.seq
            ):
                item.count += 1
                item.end = at + length
                item.last_ts = ts
                item.accounted += accounted
            else:
                item = <Item*>grow(items, sizeof(Item))
                if item == NULL:
                    return SCAN_NO_MEMORY
                item.kind = APPEND
                item.count = 1
                item.entry_index = entry_index + entries.size // ENTRY_SIZE - 1
                item.accounted = accounted
                item.topic_id = topic_id
                item.seq = seq
                item.start = at
                item.end = at + length
                item.first_ts = item.last_ts = ts
        else:
            item = <Item*>grow(items, sizeof(Item))
            if item == NULL:
                return SCAN_NO_MEMORY
            item.kind = p[4]
            item.count = p[5]
            item.topic_id = topic_id
            item.seq = seq
            item.start = at
            item.end = at + length
            item.first_ts = ts
        frames += 1
        at += length
        open_chain[0] = p[5] & MORE
        if not open_chain[0]:
            whole.items = items.size // sizeof(Item)
            whole.last = item[0]
            whole.frames = frames
            whole.entry_bytes = entries.size
            whole.end = at


cdef object item_tuple(Item* item):
    if item.kind == APPEND:
        return (1, item.topic_id, item.seq, item.count, item.entry_index, item.start, item.end, item.first_ts,
                item.last_ts, item.accounted)
    return (item.kind, item.topic_id, item.seq, item.first_ts, item.count, item.start, item.end)


cdef int check_range(Py_ssize_t size, Py_ssize_t start, Py_ssize_t end) except -1:
    if not 0 <= start <= end <= size:
        raise ValueError(f"range {start}..{end} lies outside a buffer of {size} bytes")
    return 0


def scan_wal(buf, Py_ssize_t start, Py_ssize_t end, bytearray entries not None):
    cdef Py_buffer view
    cdef Block items, found
    cdef Whole whole
    cdef Py_ssize_t stop = start, i, before = len(entries)
    cdef bint open_chain = False
    cdef int ended
    cdef list result
    cdef uint64_t entry_index = before // ENTRY_SIZE
    items.data = found.data = NULL
    items.size = items.room = found.size = found.room = 0
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        check_range(view.len, start, end)
        if end - start >= RELEASE_GIL_BYTES:
            with nogil:
                ended = walk(<const uint8_t*>view.buf, start, end, entry_index, &items, &found, &whole, &stop,
                             &open_chain)
        else:
            ended = walk(<const uint8_t*>view.buf, start, end, entry_index, &items, &found, &whole, &stop, &open_chain)
        if ended == SCAN_NO_MEMORY:
            raise MemoryError()
        result = []
        for i in range(whole.items - 1):
            result.append(item_tuple(<Item*>items.data + i))
        if whole.items:
            result.append(item_tuple(&whole.last))
        if whole.entry_bytes:
            PyByteArray_Resize(entries, before + whole.entry_bytes)
            memcpy(PyByteArray_AS_STRING(entries) + before, found.data, whole.entry_bytes)
        if ended == SCAN_END:
            reason, why = "end", "all was read"
        elif ended == SCAN_ZEROS:
            reason, why = "zeros", "nothing but zeros follows"
        else:
            from topics.format import walscan as twin

            reason, why = "bad", twin.explain(memoryview(buf), stop, end)
        if open_chain:
            reason, why = "unfinished", f"the last submission is not whole: {why}"
        return WalScan(result, whole.end, whole.frames, stop, reason, why)
    finally:
        PyBuffer_Release(&view)
        PyMem_RawFree(items.data)
        PyMem_RawFree(found.data)


cdef Py_ssize_t next_sync_mark(const uint8_t* buf, Py_ssize_t at, Py_ssize_t end, uint64_t number) noexcept nogil:
    """The next offset at or after `at` of a whole SyncMark of this file, or -1. Fixed fields first, then the hash."""
    cdef const uint8_t* p
    cdef const uint8_t* last = buf + end - SYNC_MARK_FRAME
    p = buf + at
    while end - at >= SYNC_MARK_FRAME and p <= last:
        p = <const uint8_t*>memchr(p, SYNC_MARK_FRAME - 4, last - p + 1)
        if p == NULL:
            return -1
        if (
            load32(p) == SYNC_MARK_FRAME - 4
            and p[4] == CHECKPOINT_MARK
            and load32(p + 30) == 0
            and load32(p + 34) == SYNC_MARK_BODY
            and p[WAL_HEADER + 8] == SYNC_EXT
            and load64(p + WAL_HEADER + 9) == number
            and XXH3_64bits(p + 4, SYNC_MARK_FRAME - 12) == load64(p + SYNC_MARK_FRAME - 8)
        ):
            return p - buf
        p += 1
    return -1


def find_sync_marks(buf, Py_ssize_t start, Py_ssize_t end, uint64_t file_number):
    cdef Py_buffer view
    cdef Py_ssize_t at
    cdef list found = []
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        check_range(view.len, start, end)
        at = start
        while True:
            if end - at >= RELEASE_GIL_BYTES:
                with nogil:
                    at = next_sync_mark(<const uint8_t*>view.buf, at, end, file_number)
            else:
                at = next_sync_mark(<const uint8_t*>view.buf, at, end, file_number)
            if at < 0:
                return found
            found.append((at, load64(<const uint8_t*>view.buf + at + WAL_HEADER + 17)))
            at += 1
    finally:
        PyBuffer_Release(&view)


cdef Py_ssize_t next_frame(const uint8_t* buf, Py_ssize_t start, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t at, length
    cdef Py_ssize_t budget = SEARCH_BYTES_MIN + SEARCH_BYTES_FACTOR * (end - start)
    for at in range(start, end - WAL_OVERHEAD + 1):
        length = plain_frame(buf + at, end - at)
        if length < 0:
            continue
        if length - 4 > SEARCH_SMALL:
            if length - 4 > budget:
                continue
            budget -= length - 4
        if accounted_frame(buf + at, length) >= 0:
            return at
    return -1


def find_frames(buf, Py_ssize_t start, Py_ssize_t end):
    cdef Py_buffer view
    cdef Py_ssize_t found
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        check_range(view.len, start, end)
        if end - start >= RELEASE_GIL_BYTES:
            with nogil:
                found = next_frame(<const uint8_t*>view.buf, start, end)
        else:
            found = next_frame(<const uint8_t*>view.buf, start, end)
    finally:
        PyBuffer_Release(&view)
    return found
