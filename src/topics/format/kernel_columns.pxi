# Frames as columns in the memory layout of Arrow. The twin of columns.py.

cdef enum:
    TEXT_COLUMNS = 5

cdef struct TextColumn:
    Block text
    Block offsets
    Block bits
    bint has_nulls


cdef inline int put_cell(TextColumn* column, Py_ssize_t row, const uint8_t* p, Py_ssize_t size) noexcept nogil:
    """Add a value, or with NULL none; -1 if there is no memory or the column is full."""
    cdef uint8_t* place
    if row & 7 == 0:
        place = grow(&column.bits, 1)
        if place == NULL:
            return -1
        place[0] = 0
    if p == NULL:
        column.has_nulls = True
    else:
        column.bits.data[row >> 3] |= <uint8_t>(1 << (row & 7))
        if column.text.size + size > 0x7FFFFFFF:
            return -1
        if size:
            place = grow(&column.text, size)
            if place == NULL:
                return -1
            memcpy(place, p, size)
    place = grow(&column.offsets, 4)
    if place == NULL:
        return -1
    store32(place, <uint32_t>column.text.size)
    return 0


cdef bint is_plain_key(Envelope* parts) noexcept nogil:
    """Whether the key is a JSON string whose text stands between its quotes as it is."""
    cdef const uint8_t* p = parts.key
    cdef Py_ssize_t size = parts.key_size
    return (
        size >= 2 and p[0] == 0x22 and p[size - 1] == 0x22 and plain_end(p, 1, size) == size - 1
        and bad_utf8(p, size) < 0
    )


cdef object column_bytes(Block* block):
    return PyBytes_FromStringAndSize(<char*>block.data, block.size)


def collect_columns(buf, entries, Py_ssize_t start_index, Py_ssize_t count, uint64_t first_seq, int layout,
                    int64_t base, dead):
    cdef Py_buffer view, index
    cdef const uint8_t* entry
    cdef const uint8_t* dead_flags
    cdef const uint8_t* key_text
    cdef Py_ssize_t i, row = 0, key_size
    cdef Parts parts
    cdef Envelope envelope
    cdef TextColumn columns[TEXT_COLUMNS]
    cdef Block seqs, times
    cdef uint8_t* place
    cdef bytes key
    cdef int failed
    check_layout(layout)
    check_base(base)
    memset(columns, 0, sizeof(columns))
    memset(&seqs, 0, sizeof(Block))
    memset(&times, 0, sizeof(Block))
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(entries, &index, PyBUF_SIMPLE)
        try:
            check_entries(index.len, start_index, count)
            dead_flags = check_dead(dead, count)
            for i in range(TEXT_COLUMNS):
                place = grow(&columns[i].offsets, 4)
                if place == NULL:
                    raise MemoryError()
                store32(place, 0)
            entry = <const uint8_t*>index.buf + start_index * ENTRY_SIZE - ENTRY_SIZE
            for i in range(count):
                entry += ENTRY_SIZE
                if is_hole(entry) or (dead_flags != NULL and dead_flags[i]):
                    continue
                find_parts(&view, <int64_t>load32(entry) - base, load32(entry + 4), layout, &parts)
                if not split_body(parts.body, parts.end - parts.body, &envelope):
                    envelope_error(parts.body, parts.end - parts.body)
                key_text = NULL
                key_size = 0
                if envelope.key != NULL:
                    if is_plain_key(&envelope):
                        key_text = envelope.key + 1
                        key_size = envelope.key_size - 2
                    else:
                        key = decode_key(PyBytes_FromStringAndSize(<const char*>envelope.key, envelope.key_size)).encode()
                        key_text = <const uint8_t*>PyBytes_AS_STRING(key)
                        key_size = PyBytes_GET_SIZE(key)
                failed = put_cell(&columns[0], row, parts.tag if parts.flags & TAG else NULL, parts.body - parts.tag)
                failed |= put_cell(&columns[1], row, parts.node if parts.flags & NODE else NULL, parts.tag - parts.node)
                failed |= put_cell(&columns[2], row, key_text, key_size)
                failed |= put_cell(&columns[3], row, envelope.data, envelope.data_size)
                failed |= put_cell(&columns[4], row, envelope.meta, envelope.meta_size)
                place = grow(&seqs, 8)
                if failed or place == NULL:
                    raise MemoryError()
                store64(place, first_seq + i)
                place = grow(&times, 8)
                if place == NULL:
                    raise MemoryError()
                store64(place, parts.ts)
                row += 1
            texts = []
            for i in range(TEXT_COLUMNS):
                bits = column_bytes(&columns[i].bits) if columns[i].has_nulls else None
                texts.append((bits, column_bytes(&columns[i].offsets), column_bytes(&columns[i].text)))
            return row, column_bytes(&seqs), column_bytes(&times), tuple(texts)
        finally:
            PyBuffer_Release(&index)
    finally:
        PyBuffer_Release(&view)
        PyMem_RawFree(seqs.data)
        PyMem_RawFree(times.data)
        for i in range(TEXT_COLUMNS):
            PyMem_RawFree(columns[i].text.data)
            PyMem_RawFree(columns[i].offsets.data)
            PyMem_RawFree(columns[i].bits.data)
