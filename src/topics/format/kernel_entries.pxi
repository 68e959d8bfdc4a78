# Functions over frames that entries point at: copy, verify, read, index. The twin of the rest of batchops.py.

cdef enum:
    WAL_LAYOUT = 0
    SEGMENT_LAYOUT = 1

cdef Py_ssize_t IDX_BYTES_MAX = ENTRY_SIZE << 24
cdef Py_ssize_t COPY_BYTES = 8 * 1024 * 1024
"""What `restamp` copies between two looks at the room of its output."""


cdef inline bint is_hole(const uint8_t* entry) noexcept nogil:
    return entry[16] & HOLE


cdef uint64_t entries_size(const uint8_t* entry, Py_ssize_t count) noexcept nogil:
    """Bytes of the frames that the entries claim to point at: how much work they are."""
    cdef uint64_t size = 0
    cdef Py_ssize_t i
    for i in range(count):
        size += load32(entry + i * ENTRY_SIZE + 4)
    return size


cdef int check_layout(int layout) except -1:
    if layout != WAL_LAYOUT and layout != SEGMENT_LAYOUT:
        raise ValueError(f"layout {layout} is unknown")
    return 0


cdef const uint8_t* check_dead(object dead, Py_ssize_t count) except? NULL:
    """The flags, or NULL if there are none."""
    if dead is None:
        return NULL
    if PyBytes_GET_SIZE(<bytes?>dead) < count:
        raise ValueError(f"{len(dead)} bytes of dead flags do not cover {count} entries")
    return <const uint8_t*>PyBytes_AS_STRING(dead)


cdef struct Copy:
    # A restamp between two steps.
    const uint8_t* buf
    Py_ssize_t size
    const uint8_t* entries
    const uint8_t* dead
    Py_ssize_t count
    uint64_t first_seq
    uint64_t topic_id
    uint64_t position  # in the segment's file
    Py_ssize_t done
    bint is_bad
    bint is_full


cdef Py_ssize_t copy_room(Copy* copy, Py_ssize_t* step_end) noexcept nogil:
    """How many bytes the next step writes at most, and the entry before which it ends."""
    cdef Py_ssize_t i = copy.done, room = 0
    cdef uint32_t length
    while i < copy.count and room < COPY_BYTES:
        if not is_hole(copy.entries + i * ENTRY_SIZE):
            length = load32(copy.entries + i * ENTRY_SIZE + 4)
            if length > copy.size:
                i += 1
                break
            room += length
        i += 1
    step_end[0] = i
    return room


cdef Py_ssize_t copy_step(Copy* copy, Py_ssize_t step_end, uint8_t* data, uint8_t* idx) noexcept nogil:
    """Copy up to `step_end`, the next bad frame or 4 GiB; the number of bytes written to `data`."""
    cdef uint8_t* out = data
    cdef const uint8_t* entry
    cdef const uint8_t* p
    cdef uint32_t length
    cdef uint8_t flags
    cdef bint hole
    cdef uint64_t ts
    while copy.done < step_end:
        entry = copy.entries + copy.done * ENTRY_SIZE
        length = load32(entry + 4)
        ts = load64(entry + 8)
        hole = is_hole(entry)
        p = copy.buf + load32(entry)
        if not hole:
            if not is_wal_record(
                copy.buf, copy.size, load32(entry), length, copy.first_seq + copy.done, copy.topic_id
            ):
                copy.is_bad = True
                break
            ts = load64(p + 22)
            hole = copy.dead != NULL and copy.dead[copy.done] != 0
        if copy.position + (0 if hole else length - 8) > U32_MAX:
            copy.is_full = True
            break
        if hole:
            store_entry(idx, <uint32_t>copy.position, 0, ts, HOLE, 0)
        else:
            flags = p[5] & KEPT
            store32(out, length - 12)
            out[4] = flags
            memcpy(out + 5, p + 14, length - 22)  # seq to the end of the body lie alike in both layouts
            store64(out + length - 17, XXH3_64bits(out + 4, length - 21))
            out[length - 9] = 0
            store32(idx, <uint32_t>copy.position)
            store32(idx + 4, length - 8)
            store64(idx + 8, ts)
            store32(idx + 16, (load32(entry + 16) & 0xFFFFFF00U) | flags)
            out += length - 8
            copy.position += length - 8
        idx += ENTRY_SIZE
        copy.done += 1
    return out - data


def restamp(buf, entries, Py_ssize_t start_index, Py_ssize_t count, uint64_t first_seq, uint64_t topic_id, dead,
            bytearray data_out not None, bytearray idx_out not None, uint64_t data_base=0):
    cdef Py_buffer view, index, data_view, idx_view
    cdef Py_ssize_t data_before = len(data_out), idx_before = len(idx_out), room, step_end = 0, written, done
    cdef Copy copy
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(entries, &index, PyBUF_SIMPLE)
        try:
            check_entries(index.len, start_index, count)
            copy.buf = <const uint8_t*>view.buf
            copy.size = view.len
            copy.entries = <const uint8_t*>index.buf + start_index * ENTRY_SIZE
            copy.dead = check_dead(dead, count)
            copy.count = count
            copy.first_seq = first_seq
            copy.topic_id = topic_id
            copy.position = data_base + data_before
            copy.done = 0
            copy.is_bad = copy.is_full = False
            while copy.done < count and not copy.is_bad and not copy.is_full:
                room = copy_room(&copy, &step_end)
                written = len(data_out)
                done = copy.done
                PyByteArray_Resize(data_out, written + room)
                PyByteArray_Resize(idx_out, idx_before + step_end * ENTRY_SIZE)
                # Locked, so that nobody resizes them while the GIL is released.
                PyObject_GetBuffer(data_out, &data_view, PyBUF_WRITABLE)
                PyObject_GetBuffer(idx_out, &idx_view, PyBUF_WRITABLE)
                if room >= RELEASE_GIL_BYTES:
                    with nogil:
                        room = copy_step(&copy, step_end, <uint8_t*>data_view.buf + written,
                                         <uint8_t*>idx_view.buf + idx_before + done * ENTRY_SIZE)
                else:
                    room = copy_step(&copy, step_end, <uint8_t*>data_view.buf + written,
                                     <uint8_t*>idx_view.buf + idx_before + done * ENTRY_SIZE)
                PyBuffer_Release(&idx_view)
                PyBuffer_Release(&data_view)
                PyByteArray_Resize(data_out, written + room)
            if copy.is_full:
                PyByteArray_Resize(data_out, data_before)
                PyByteArray_Resize(idx_out, idx_before)
                raise OverflowError("a segment stays below 4 GiB")
            PyByteArray_Resize(idx_out, idx_before + copy.done * ENTRY_SIZE)
            return copy.done
        finally:
            PyBuffer_Release(&index)
    finally:
        PyBuffer_Release(&view)


def find_runs(entries, Py_ssize_t count, int64_t bytes_max, int64_t far):
    cdef Py_buffer index
    cdef const uint8_t* entry
    cdef Py_ssize_t i, low = 0, kept = 0
    cdef int64_t total = 0, base = 0, end = 0, expected = 0, offset, length
    cdef list runs = []
    PyObject_GetBuffer(entries, &index, PyBUF_SIMPLE)
    try:
        check_entries(index.len, 0, count)
        entry = <const uint8_t*>index.buf
        for i in range(count):
            offset, length = load32(entry), load32(entry + 4)
            total += length
            if i and total > bytes_max:
                break
            if i == 0:
                base = offset
            elif offset - expected > far or expected - offset > far:
                runs.append((low, i, base, end))
                low, base, end = i, offset, 0
            expected = offset + length
            end = max(end, expected)
            kept = i + 1
            entry += ENTRY_SIZE
    finally:
        PyBuffer_Release(&index)
    if kept:
        runs.append((low, kept, base, end))
    return runs


def measure_entries(entries, Py_ssize_t count, dead):
    cdef Py_buffer index
    cdef const uint8_t* entry
    cdef const uint8_t* gone
    cdef Py_ssize_t i, live = 0
    cdef uint64_t size = 0
    PyObject_GetBuffer(entries, &index, PyBUF_SIMPLE)
    try:
        check_entries(index.len, 0, count)
        gone = check_dead(dead, count)
        entry = <const uint8_t*>index.buf
        for i in range(count):
            if gone == NULL or not gone[i]:
                live += 1
                size += load32(entry + 16) >> 8
            entry += ENTRY_SIZE
    finally:
        PyBuffer_Release(&index)
    return live, size


def find_blank(entries, Py_ssize_t count):
    cdef Py_buffer index
    cdef const uint8_t* entry
    cdef Py_ssize_t i
    PyObject_GetBuffer(entries, &index, PyBUF_SIMPLE)
    try:
        check_entries(index.len, 0, count)
        entry = <const uint8_t*>index.buf
        for i in range(count):
            if load32(entry + 4) == 0 and not is_hole(entry):
                return i
            entry += ENTRY_SIZE
    finally:
        PyBuffer_Release(&index)
    return count


cdef Py_ssize_t verify_frames(
    const uint8_t* buf, Py_ssize_t size, const uint8_t* entry, Py_ssize_t count, uint64_t first_seq, int layout,
    uint64_t topic_id, int64_t base,
) noexcept nogil:
    cdef Py_ssize_t i
    cdef int64_t at
    cdef bint good
    for i in range(count):
        if not is_hole(entry):
            at = <int64_t>load32(entry) - base
            if layout == WAL_LAYOUT:
                good = is_wal_record(buf, size, at, load32(entry + 4), first_seq + i, topic_id)
            else:
                good = is_segment_record(buf, size, at, load32(entry + 4), first_seq + i)
            if not good:
                return i
        entry += ENTRY_SIZE
    return count


def verify(buf, entries, Py_ssize_t start_index, Py_ssize_t count, uint64_t first_seq, int layout, uint64_t topic_id,
           int64_t base):
    cdef Py_buffer view, index
    cdef const uint8_t* entry
    cdef Py_ssize_t result
    check_layout(layout)
    check_base(base)
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(entries, &index, PyBUF_SIMPLE)
        try:
            check_entries(index.len, start_index, count)
            entry = <const uint8_t*>index.buf + start_index * ENTRY_SIZE
            if entries_size(entry, count) >= <uint64_t>RELEASE_GIL_BYTES:
                with nogil:
                    result = verify_frames(<const uint8_t*>view.buf, view.len, entry, count, first_seq, layout,
                                           topic_id, base)
            else:
                result = verify_frames(<const uint8_t*>view.buf, view.len, entry, count, first_seq, layout, topic_id,
                                       base)
        finally:
            PyBuffer_Release(&index)
    finally:
        PyBuffer_Release(&view)
    return result


cdef int check_base(int64_t base) except -1:
    if not -(<int64_t>1 << 48) < base < <int64_t>1 << 48:
        raise OverflowError(f"base {base} is no place in a file")
    return 0


cdef struct Parts:
    uint8_t flags
    uint64_t ts
    const uint8_t* node
    const uint8_t* tag
    const uint8_t* body
    const uint8_t* end


cdef enum:
    PART_OK = 0
    PART_OUTSIDE = 1
    PART_LENGTHS = 2


cdef int locate(const uint8_t* buf, Py_ssize_t size, int64_t at, uint32_t length, int layout, Parts* out) noexcept nogil:
    """The parts of a frame, or why it has none."""
    cdef const uint8_t* p
    cdef uint64_t node_size, tag_size, data_size
    cdef int header, overhead
    if layout == WAL_LAYOUT:
        header, overhead = WAL_HEADER, WAL_OVERHEAD
    else:
        header, overhead = SEGMENT_HEADER, SEGMENT_OVERHEAD
    if at < 0 or length < <uint32_t>overhead or at + <int64_t>length > size:
        return PART_OUTSIDE
    p = buf + at
    node_size = load16(p + header - 8)
    tag_size = load16(p + header - 6)
    data_size = load32(p + header - 4)
    if length != overhead + node_size + tag_size + data_size:
        return PART_LENGTHS
    out.flags = p[5] if layout == WAL_LAYOUT else p[4]
    out.ts = load64(p + header - 16)
    out.node = p + header
    out.tag = out.node + node_size
    out.body = out.tag + tag_size
    out.end = out.body + data_size
    return PART_OK


cdef int find_parts(Py_buffer* view, int64_t at, uint32_t length, int layout, Parts* out) except -1:
    """The parts of a frame; ValueError if it does not lie in the buffer or its lengths are not the entry's."""
    return refuse_part(locate(<const uint8_t*>view.buf, view.len, at, length, layout, out))


cdef int refuse_part(int why) except -1:
    if why == PART_OUTSIDE:
        raise ValueError("an entry points outside the buffer")
    if why == PART_LENGTHS:
        raise ValueError("a frame's lengths do not match its entry")
    return 0


cdef class _LastText:
    # Neighbours often share tag and node: one str for a run of them saves time and memory.
    cdef object text
    cdef const uint8_t* data
    cdef Py_ssize_t size

    def __cinit__(self):
        self.data = NULL
        self.text = None

    cdef object decode(self, const uint8_t* data, Py_ssize_t size):
        if self.data == NULL or size != self.size or memcmp(data, self.data, size) != 0:
            self.text = PyUnicode_DecodeUTF8(<const char*>data, size, NULL)
            self.data = data
            self.size = size
        return self.text


def make_records(buf, entries, Py_ssize_t start_index, Py_ssize_t count, uint64_t first_seq, int layout, int64_t base,
                 dead, record_type):
    cdef Py_buffer view, index
    cdef const uint8_t* entry
    cdef const uint8_t* dead_flags
    cdef Py_ssize_t i
    cdef Parts parts
    cdef Envelope envelope
    cdef list records = []
    cdef _LastText tags = _LastText(), nodes = _LastText()
    cdef object tag, node
    check_layout(layout)
    check_base(base)
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(entries, &index, PyBUF_SIMPLE)
        try:
            check_entries(index.len, start_index, count)
            dead_flags = check_dead(dead, count)
            entry = <const uint8_t*>index.buf + start_index * ENTRY_SIZE - ENTRY_SIZE
            for i in range(count):
                entry += ENTRY_SIZE
                if is_hole(entry) or (dead_flags != NULL and dead_flags[i]):
                    continue
                find_parts(&view, <int64_t>load32(entry) - base, load32(entry + 4), layout, &parts)
                tag = tags.decode(parts.tag, parts.body - parts.tag) if parts.flags & TAG else None
                node = nodes.decode(parts.node, parts.tag - parts.node) if parts.flags & NODE else None
                if not split_body(parts.body, parts.end - parts.body, &envelope):
                    envelope_error(parts.body, parts.end - parts.body)
                records.append(
                    record_type(
                        first_seq + i,
                        parts.ts,
                        tag,
                        node,
                        key_of(&envelope),
                        meta_of(&envelope),
                        PyBytes_FromStringAndSize(<const char*>envelope.data, envelope.data_size),
                    )
                )
        finally:
            PyBuffer_Release(&index)
    finally:
        PyBuffer_Release(&view)
    return records


def collect_tags(buf, entries, Py_ssize_t start_index, Py_ssize_t count, int layout, int64_t base):
    cdef Py_buffer view, index
    cdef const uint8_t* entry
    cdef Py_ssize_t i
    cdef Parts parts
    cdef list tags = []
    cdef object tag
    check_layout(layout)
    check_base(base)
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(entries, &index, PyBUF_SIMPLE)
        try:
            check_entries(index.len, start_index, count)
            entry = <const uint8_t*>index.buf + start_index * ENTRY_SIZE
            for i in range(count):
                tag = None
                if not is_hole(entry):
                    find_parts(&view, <int64_t>load32(entry) - base, load32(entry + 4), layout, &parts)
                    if parts.flags & TAG:
                        tag = PyBytes_FromStringAndSize(<const char*>parts.tag, parts.body - parts.tag)
                tags.append(tag)
                entry += ENTRY_SIZE
        finally:
            PyBuffer_Release(&index)
    finally:
        PyBuffer_Release(&view)
    return tags


cdef Py_ssize_t index_frames(
    const uint8_t* buf, Py_ssize_t end, uint64_t first_seq, Block* idx
) noexcept nogil:
    """End of the last valid frame, or -1 if there is no memory."""
    cdef Py_ssize_t at = 0, accounted, names
    cdef uint64_t length, seq, expected = first_seq, gap, last_ts = 0, i
    cdef const uint8_t* p
    cdef uint8_t* entry
    while end - at >= SEGMENT_OVERHEAD:
        p = buf + at
        length = <uint64_t>load32(p) + 4
        if length > FRAME_BYTES + 4 or length > <uint64_t>(end - at) or length < SEGMENT_OVERHEAD:
            break
        seq = load64(p + 5)
        gap = seq - expected
        if seq < expected or gap > HOLE_RUN or not is_segment_record(buf, end, at, <uint32_t>length, seq):
            break
        if idx.size + <Py_ssize_t>(gap + 1) * ENTRY_SIZE > IDX_BYTES_MAX:
            break
        names = load16(p + 21) + load16(p + 23)
        accounted = envelope_accounted(p + SEGMENT_HEADER + names, length - SEGMENT_OVERHEAD - names)
        if accounted < 0:
            break
        entry = grow(idx, (gap + 1) * ENTRY_SIZE)
        if entry == NULL:
            return -1
        for i in range(gap):
            store_entry(entry, <uint32_t>at, 0, last_ts, HOLE, 0)
            entry += ENTRY_SIZE
        last_ts = load64(p + 13)
        store_entry(entry, <uint32_t>at, <uint32_t>length, last_ts, p[4] & KEPT, accounted)
        at += length
        expected = seq + 1
        if expected == 0:
            break  # no seq is left for another frame
    return at


def rebuild_idx(data, uint64_t first_seq, Py_ssize_t end):
    cdef Py_buffer view
    cdef Block idx
    cdef Py_ssize_t at
    idx.data = NULL
    idx.size = idx.room = 0
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= end <= view.len:
            raise ValueError(f"end {end} lies outside a buffer of {view.len} bytes")
        if <uint64_t>end > U32_MAX:
            raise OverflowError("a segment stays below 4 GiB")
        if end >= RELEASE_GIL_BYTES:
            with nogil:
                at = index_frames(<const uint8_t*>view.buf, end, first_seq, &idx)
        else:
            at = index_frames(<const uint8_t*>view.buf, end, first_seq, &idx)
        if at < 0:
            raise MemoryError()
        return PyBytes_FromStringAndSize(<char*>idx.data, idx.size), at, idx.size // ENTRY_SIZE
    finally:
        PyBuffer_Release(&view)
        PyMem_RawFree(idx.data)
