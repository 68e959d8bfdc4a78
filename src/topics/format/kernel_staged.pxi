# Frames of staged parts. The twin of the functions in staged.py.


cdef void copy_staged(const uint8_t* source, const uint8_t* entry, Py_ssize_t count, uint8_t* out) noexcept nogil:
    cdef uint32_t length
    cdef Py_ssize_t i
    for i in range(count):
        length = load32(entry + 4)
        store32(out, length - 12)
        out[4] = entry[16] & KEPT
        memset(out + 5, 0, 16)
        memcpy(out + 21, source + load32(entry) + 30, length - 38)  # the three lengths to the end of the body
        store64(out + length - 17, XXH3_64bits(out + 4, length - 21))
        out[length - 9] = 0
        out += length - 8
        entry += ENTRY_SIZE


def stage_frames(bytearray frames not None, bytearray entries not None, Py_ssize_t count):
    cdef Py_buffer view, index
    cdef const uint8_t* entry
    cdef Py_ssize_t total = 0, i
    cdef uint64_t offset, length
    cdef uint8_t* out
    cdef bytes result
    PyObject_GetBuffer(frames, &view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(entries, &index, PyBUF_SIMPLE)
        try:
            check_entries(index.len, 0, count)
            entry = <const uint8_t*>index.buf
            for i in range(count):
                offset = load32(entry + i * ENTRY_SIZE)
                length = load32(entry + i * ENTRY_SIZE + 4)
                if length < WAL_OVERHEAD or offset + length > <uint64_t>view.len:
                    raise ValueError(f"entry {i} points outside the frames")
                total += <Py_ssize_t>length - 8
            result = PyBytes_FromStringAndSize(NULL, total)
            out = <uint8_t*>PyBytes_AS_STRING(result)
            if total >= RELEASE_GIL_BYTES:
                with nogil:
                    copy_staged(<const uint8_t*>view.buf, entry, count, out)
            else:
                copy_staged(<const uint8_t*>view.buf, entry, count, out)
            return result
        finally:
            PyBuffer_Release(&index)
    finally:
        PyBuffer_Release(&view)


cdef Py_ssize_t walk_staged(
    const uint8_t* buf, Py_ssize_t start, Py_ssize_t end, uint64_t ts, Block* entries, uint64_t* total
) noexcept nogil:
    """Where the walk ended, or -1 if there is no memory."""
    cdef Py_ssize_t at = start, accounted, names
    cdef uint64_t length
    cdef const uint8_t* p
    cdef uint8_t* entry
    while at < end:
        if end - at < SEGMENT_OVERHEAD:
            break
        p = buf + at
        length = <uint64_t>load32(p) + 4
        if length - 4 > FRAME_BYTES or length > <uint64_t>(end - at):
            break
        if not is_segment_record(buf, end, at, <uint32_t>length, 0):
            break
        names = load16(p + 21) + load16(p + 23)
        accounted = envelope_accounted(p + SEGMENT_HEADER + names, <Py_ssize_t>length - SEGMENT_OVERHEAD - names)
        if accounted < 0:
            break
        if accounted > ACCOUNTED_MAX:
            accounted = ACCOUNTED_MAX
        entry = grow(entries, ENTRY_SIZE)
        if entry == NULL:
            return -1
        store_entry(entry, <uint32_t>at, <uint32_t>length, ts, p[4] & KEPT, accounted)
        total[0] += accounted
        at += length
    return at


def index_staged(buf, Py_ssize_t start, Py_ssize_t end, uint64_t ts, bytearray entries not None):
    cdef Py_buffer view
    cdef Block found
    cdef Py_ssize_t stop, before = len(entries)
    cdef uint64_t total = 0
    found.data = NULL
    found.size = found.room = 0
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        check_range(view.len, start, end)
        if <uint64_t>end > U32_MAX:
            raise OverflowError("entries hold offsets of 32 bits")
        if end - start >= RELEASE_GIL_BYTES:
            with nogil:
                stop = walk_staged(<const uint8_t*>view.buf, start, end, ts, &found, &total)
        else:
            stop = walk_staged(<const uint8_t*>view.buf, start, end, ts, &found, &total)
        if stop < 0:
            raise MemoryError()
        if found.size:
            PyByteArray_Resize(entries, before + found.size)
            memcpy(PyByteArray_AS_STRING(entries) + before, found.data, found.size)
        return stop, total
    finally:
        PyBuffer_Release(&view)
        PyMem_RawFree(found.data)


cdef Py_ssize_t restamp_frames(
    const uint8_t* buf, Py_ssize_t size, const uint8_t* entry, Py_ssize_t count, uint64_t first_seq,
    const uint8_t* dead, int64_t base, uint64_t position, uint8_t* data, uint8_t* idx, Py_ssize_t* written,
    bint* is_full,
) noexcept nogil:
    """How many were copied."""
    cdef Py_ssize_t i
    cdef int64_t at
    cdef uint32_t length
    cdef uint64_t ts
    cdef bint hole
    cdef uint8_t* out = data
    is_full[0] = False
    written[0] = 0
    for i in range(count):
        length = load32(entry + 4)
        ts = load64(entry + 8)
        hole = is_hole(entry)
        at = <int64_t>load32(entry) - base
        if not hole:
            if not is_segment_record(buf, size, at, length, 0):
                return i
            hole = dead != NULL and dead[i] != 0
        if position + (0 if hole else length) > U32_MAX:
            is_full[0] = True
            return i
        if hole:
            store_entry(idx, <uint32_t>position, 0, ts, HOLE, 0)
        else:
            memcpy(out, buf + at, length - 9)
            store64(out + 5, first_seq + i)
            store64(out + 13, ts)
            store64(out + length - 9, XXH3_64bits(out + 4, length - 13))
            out[length - 1] = 0
            store32(idx, <uint32_t>position)
            store32(idx + 4, length)
            store64(idx + 8, ts)
            store32(idx + 16, (load32(entry + 16) & 0xFFFFFF00U) | (out[4] & KEPT))
            out += length
            position += length
            written[0] = out - data
        idx += ENTRY_SIZE
        entry += ENTRY_SIZE
    return count


def restamp_staged(buf, entries, Py_ssize_t start_index, Py_ssize_t count, uint64_t first_seq, dead,
                   bytearray data_out not None, bytearray idx_out not None, uint64_t data_base=0, int64_t base=0):
    cdef Py_buffer view, index, data_view, idx_view
    cdef Py_ssize_t data_before = len(data_out), idx_before = len(idx_out), done, written = 0, i
    cdef uint64_t room = 0
    cdef uint32_t length
    cdef bint is_full = False
    cdef const uint8_t* entry
    cdef const uint8_t* flags
    check_base(base)
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(entries, &index, PyBUF_SIMPLE)
        try:
            check_entries(index.len, start_index, count)
            flags = check_dead(dead, count)
            entry = <const uint8_t*>index.buf + start_index * ENTRY_SIZE
            for i in range(count):
                length = load32(entry + i * ENTRY_SIZE + 4)
                if not is_hole(entry + i * ENTRY_SIZE):
                    if length > <uint64_t>view.len:
                        break
                    room += length
            PyByteArray_Resize(data_out, data_before + <Py_ssize_t>room)
            PyByteArray_Resize(idx_out, idx_before + count * ENTRY_SIZE)
            # Locked, so that nobody resizes them while the GIL is released.
            PyObject_GetBuffer(data_out, &data_view, PyBUF_WRITABLE)
            PyObject_GetBuffer(idx_out, &idx_view, PyBUF_WRITABLE)
            if room >= <uint64_t>RELEASE_GIL_BYTES:
                with nogil:
                    done = restamp_frames(<const uint8_t*>view.buf, view.len, entry, count, first_seq, flags, base,
                                          data_base + data_before, <uint8_t*>data_view.buf + data_before,
                                          <uint8_t*>idx_view.buf + idx_before, &written, &is_full)
            else:
                done = restamp_frames(<const uint8_t*>view.buf, view.len, entry, count, first_seq, flags, base,
                                      data_base + data_before, <uint8_t*>data_view.buf + data_before,
                                      <uint8_t*>idx_view.buf + idx_before, &written, &is_full)
            PyBuffer_Release(&idx_view)
            PyBuffer_Release(&data_view)
            if is_full:
                PyByteArray_Resize(data_out, data_before)
                PyByteArray_Resize(idx_out, idx_before)
                raise OverflowError("a segment stays below 4 GiB")
            PyByteArray_Resize(data_out, data_before + written)
            PyByteArray_Resize(idx_out, idx_before + done * ENTRY_SIZE)
            return done
        finally:
            PyBuffer_Release(&index)
    finally:
        PyBuffer_Release(&view)
