# Frames checked, filtered and laid out as Arrow columns in one pass. The twin of decode.py.

cdef enum:
    DECODE_DONE = 0
    DECODE_SLOW_KEY = 1
    COLUMN_TAG = 1
    COLUMN_NODE = 2
    COLUMN_KEY = 4
    COLUMN_DATA = 8
    COLUMN_META = 16
    COLUMN_TS = 32
    DELETED_FLAG = 0xD5


cdef struct Span:
    const uint8_t* p  # NULL = the row has no value
    Py_ssize_t size


cdef struct Wanted:
    # A text that a row must have; NULL = any will do.
    const uint8_t* p
    Py_ssize_t size
    bint is_prefix


cdef struct Decode:
    const uint8_t* buf
    Py_ssize_t size
    const uint8_t* entries
    const uint8_t* dead
    Py_ssize_t count
    uint64_t first_seq
    uint64_t topic_id
    int64_t base
    int layout
    int want
    bint check
    Wanted tag
    Wanted node
    Wanted key
    Py_ssize_t at  # the next entry
    Py_ssize_t rows
    Span* spans[TEXT_COLUMNS]
    uint64_t* seqs
    uint64_t* times
    Span slow_key  # of entry `slow_at`, decoded by the caller
    Py_ssize_t slow_at


cdef inline bint is_wanted(Wanted* wanted, const uint8_t* p, Py_ssize_t size) noexcept nogil:
    if wanted.p == NULL:
        return True
    if p == NULL or size < wanted.size or (size != wanted.size and not wanted.is_prefix):
        return False
    return memcmp(p, wanted.p, wanted.size) == 0


cdef inline void put_span(Span* spans, Py_ssize_t row, const uint8_t* p, Py_ssize_t size) noexcept nogil:
    if spans != NULL:
        spans[row].p = p
        spans[row].size = size if p != NULL else 0


cdef int decode_step(Decode* d) noexcept nogil:
    """Go on from `at` to the end, the first bad frame, or a key that needs Python."""
    cdef const uint8_t* entry
    cdef const uint8_t* p
    cdef const uint8_t* node
    cdef const uint8_t* tag
    cdef int64_t at
    cdef uint32_t length
    cdef Parts parts
    cdef Envelope envelope
    cdef Span key
    cdef bint needs_key = d.want & COLUMN_KEY or d.key.p != NULL
    cdef bint needs_body = needs_key or d.want & (COLUMN_DATA | COLUMN_META)
    memset(&envelope, 0, sizeof(Envelope))
    while d.at < d.count:
        entry = d.entries + d.at * ENTRY_SIZE
        if is_hole(entry) or (d.dead != NULL and d.dead[d.at]):
            d.at += 1
            continue
        at = <int64_t>load32(entry) - d.base
        length = load32(entry + 4)
        if locate(d.buf, d.size, at, length, d.layout, &parts) != PART_OK:
            return DECODE_DONE
        p = d.buf + at
        if d.layout == WAL_LAYOUT:
            if p[4] != APPEND or load64(p + 6) != d.topic_id or load64(p + 14) != d.first_seq + d.at:
                return DECODE_DONE
            if load32(p) + <uint64_t>4 != length:
                return DECODE_DONE
            if d.check and XXH3_64bits(p + 4, length - 12) != load64(p + length - 8):
                return DECODE_DONE
        else:
            if p[length - 1] == DELETED_FLAG:
                d.at += 1
                continue
            if load32(p) + <uint64_t>4 != length or load64(p + 5) != d.first_seq + d.at:
                return DECODE_DONE
            if d.check and XXH3_64bits(p + 4, length - 13) != load64(p + length - 9):
                return DECODE_DONE
        tag = parts.tag if parts.flags & TAG else NULL
        node = parts.node if parts.flags & NODE else NULL
        if not is_wanted(&d.tag, tag, parts.body - parts.tag) or not is_wanted(&d.node, node, parts.tag - parts.node):
            d.at += 1
            continue
        key.p = NULL
        key.size = 0
        if needs_body:
            if not split_body(parts.body, parts.end - parts.body, &envelope):
                return DECODE_DONE
            if needs_key and envelope.key != NULL:
                if d.slow_at == d.at:
                    key = d.slow_key
                elif is_plain_key(&envelope):
                    key.p = envelope.key + 1
                    key.size = envelope.key_size - 2
                else:
                    return DECODE_SLOW_KEY
            if not is_wanted(&d.key, key.p, key.size):
                d.at += 1
                continue
        put_span(d.spans[0], d.rows, tag, parts.body - parts.tag)
        put_span(d.spans[1], d.rows, node, parts.tag - parts.node)
        put_span(d.spans[2], d.rows, key.p, key.size)
        put_span(d.spans[3], d.rows, envelope.data, envelope.data_size)
        put_span(d.spans[4], d.rows, envelope.meta, envelope.meta_size)
        d.seqs[d.rows] = d.first_seq + d.at
        if d.times != NULL:
            d.times[d.rows] = parts.ts
        d.rows += 1
        d.at += 1
    return DECODE_DONE


cdef bint read_slow_key(Decode* d, list kept) except *:
    """Decode the key of entry `at`, which has escapes; False if it is no JSON string."""
    cdef const uint8_t* entry = d.entries + d.at * ENTRY_SIZE
    cdef Parts parts
    cdef Envelope envelope
    cdef bytes key
    locate(d.buf, d.size, <int64_t>load32(entry) - d.base, load32(entry + 4), d.layout, &parts)
    split_body(parts.body, parts.end - parts.body, &envelope)
    try:
        key = decode_key(PyBytes_FromStringAndSize(<const char*>envelope.key, envelope.key_size)).encode()
    except BadEnvelope:
        return False
    kept.append(key)  # the span points into it
    d.slow_key.p = <const uint8_t*>PyBytes_AS_STRING(key)
    d.slow_key.size = PyBytes_GET_SIZE(key)
    d.slow_at = d.at
    return True


cdef object spans_column(Span* spans, Py_ssize_t rows):
    """(validity bits or None, int32 offsets, text)."""
    cdef Py_ssize_t i, total = 0, nulls = 0
    cdef uint8_t* place
    cdef uint8_t* bits
    cdef uint32_t* offsets
    cdef bytes text, offset_bytes, bit_bytes = None
    for i in range(rows):
        total += spans[i].size
        nulls += spans[i].p == NULL
    if total > 0x7FFFFFFF:
        raise OverflowError("a column stays below 2 GiB")
    text = PyBytes_FromStringAndSize(NULL, total)
    offset_bytes = PyBytes_FromStringAndSize(NULL, (rows + 1) * 4)
    place = <uint8_t*>PyBytes_AS_STRING(text)
    offsets = <uint32_t*>PyBytes_AS_STRING(offset_bytes)
    with nogil:
        total = 0
        for i in range(rows):
            offsets[i] = <uint32_t>total
            if spans[i].size:
                memcpy(place + total, spans[i].p, spans[i].size)
                total += spans[i].size
        offsets[rows] = <uint32_t>total
    if nulls:
        bit_bytes = PyBytes_FromStringAndSize(NULL, (rows + 7) // 8)
        bits = <uint8_t*>PyBytes_AS_STRING(bit_bytes)
        memset(bits, 0, (rows + 7) // 8)
        for i in range(rows):
            if spans[i].p != NULL:
                bits[i >> 3] |= <uint8_t>(1 << (i & 7))
    return bit_bytes, offset_bytes, text


cdef int set_wanted(Wanted* wanted, object text, bint is_prefix) except -1:
    wanted.is_prefix = is_prefix
    wanted.p = NULL
    wanted.size = 0
    if text is not None:
        wanted.p = <const uint8_t*>PyBytes_AS_STRING(<bytes?>text)
        wanted.size = PyBytes_GET_SIZE(text)
    return 0


def decode_columns(buf, entries, Py_ssize_t start_index, Py_ssize_t count, uint64_t first_seq, int layout,
                   uint64_t topic_id, int64_t base, dead, int want, bint check, tag=None, bint tag_prefix=False,
                   node=None, key=None):
    cdef Py_buffer view, index
    cdef Decode d
    cdef Py_ssize_t i
    cdef int state
    cdef list kept = []
    check_layout(layout)
    check_base(base)
    memset(&d, 0, sizeof(Decode))
    d.slow_at = -1
    set_wanted(&d.tag, tag, tag_prefix)
    set_wanted(&d.node, node, False)
    set_wanted(&d.key, key, False)
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(entries, &index, PyBUF_SIMPLE)
        try:
            check_entries(index.len, start_index, count)
            d.dead = check_dead(dead, count)
            d.buf = <const uint8_t*>view.buf
            d.size = view.len
            d.entries = <const uint8_t*>index.buf + start_index * ENTRY_SIZE
            d.count = count
            d.first_seq, d.topic_id, d.base, d.layout = first_seq, topic_id, base, layout
            d.want, d.check = want, check
            d.seqs = <uint64_t*>PyMem_RawRealloc(NULL, count * 8 + 8)
            if d.seqs == NULL:
                raise MemoryError()
            if want & COLUMN_TS:
                d.times = <uint64_t*>PyMem_RawRealloc(NULL, count * 8 + 8)
                if d.times == NULL:
                    raise MemoryError()
            for i in range(TEXT_COLUMNS):
                if want & (1 << i):
                    d.spans[i] = <Span*>PyMem_RawRealloc(NULL, count * sizeof(Span) + 8)
                    if d.spans[i] == NULL:
                        raise MemoryError()
            while True:
                with nogil:
                    state = decode_step(&d)
                if state != DECODE_SLOW_KEY or not read_slow_key(&d, kept):
                    break
            texts = tuple([
                spans_column(d.spans[i], d.rows) if d.spans[i] != NULL else None for i in range(TEXT_COLUMNS)
            ])
            return (
                d.at,
                d.rows,
                PyBytes_FromStringAndSize(<char*>d.seqs, d.rows * 8),
                PyBytes_FromStringAndSize(<char*>d.times, d.rows * 8) if d.times != NULL else None,
                texts,
            )
        finally:
            PyBuffer_Release(&index)
    finally:
        PyBuffer_Release(&view)
        PyMem_RawFree(d.seqs)
        PyMem_RawFree(d.times)
        for i in range(TEXT_COLUMNS):
            PyMem_RawFree(d.spans[i])
