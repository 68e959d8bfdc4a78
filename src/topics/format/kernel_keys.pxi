# The keys of records that entries point at. The twin of `collect_keys` and `is_keyless` of batchops.py.

def collect_keys(buf, entries, Py_ssize_t start_index, Py_ssize_t count, int layout, int64_t base):
    cdef Py_buffer view, index
    cdef const uint8_t* entry
    cdef Py_ssize_t i
    cdef Parts parts
    cdef Envelope envelope
    cdef list keys = []
    cdef object key
    check_layout(layout)
    check_base(base)
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(entries, &index, PyBUF_SIMPLE)
        try:
            check_entries(index.len, start_index, count)
            entry = <const uint8_t*>index.buf + start_index * ENTRY_SIZE
            for i in range(count):
                key = None
                if not is_hole(entry):
                    find_parts(&view, <int64_t>load32(entry) - base, load32(entry + 4), layout, &parts)
                    if not split_body(parts.body, parts.end - parts.body, &envelope):
                        envelope_error(parts.body, parts.end - parts.body)
                    key = key_of(&envelope)
                    if key is not None:
                        key = (<str>key).encode()
                keys.append(key)
                entry += ENTRY_SIZE
        finally:
            PyBuffer_Release(&index)
    finally:
        PyBuffer_Release(&view)
    return keys


cdef int find_key(
    const uint8_t* buf, Py_ssize_t size, const uint8_t* entry, Py_ssize_t count, int layout, int64_t base,
    bint* keyless,
) noexcept nogil:
    """Says whether a record may have a key; PART_OK, or why the first bad frame has no parts."""
    cdef Py_ssize_t i
    cdef Parts parts
    cdef int why
    keyless[0] = True
    for i in range(count):
        if not is_hole(entry):
            why = locate(buf, size, <int64_t>load32(entry) - base, load32(entry + 4), layout, &parts)
            if why != PART_OK:
                return why
            keyless[0] &= parts.end - parts.body >= 5 and memcmp(parts.body, b'{"d":', 5) == 0
        entry += ENTRY_SIZE
    return PART_OK


def is_keyless(buf, entries, Py_ssize_t start_index, Py_ssize_t count, int layout, int64_t base):
    cdef Py_buffer view, index
    cdef const uint8_t* entry
    cdef int why
    cdef bint keyless = True
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
                    why = find_key(<const uint8_t*>view.buf, view.len, entry, count, layout, base, &keyless)
            else:
                why = find_key(<const uint8_t*>view.buf, view.len, entry, count, layout, base, &keyless)
        finally:
            PyBuffer_Release(&index)
    finally:
        PyBuffer_Release(&view)
    refuse_part(why)
    return keyless
