# The borders of an envelope's fields. The twin of envelope.py.

cdef struct Envelope:
    # Each a place and a length in the body; NULL = absent.
    const uint8_t* key
    Py_ssize_t key_size
    const uint8_t* meta
    Py_ssize_t meta_size
    const uint8_t* data
    Py_ssize_t data_size

cdef extern from *:
    """
    /* Whether `,"m":` or `,"k":` occurs. Every position is tested without a branch; looking for the comma first would
       stumble over each comma of the data. */
    static int topics_field_occurs(const unsigned char *p, Py_ssize_t size) {
        for (Py_ssize_t at = 0; at + 5 <= size; at++)
            if ((p[at] == ',') & (p[at + 1] == '"') & ((p[at + 2] == 'm') | (p[at + 2] == 'k')) & (p[at + 3] == '"')
                & (p[at + 4] == ':'))
                return 1;
        return 0;
    }

    #if defined(__GNUC__)
    typedef unsigned char TopicsBytes __attribute__((vector_size(16)));

    static inline TopicsBytes topics_bytes(const unsigned char *p) {
        TopicsBytes bytes;
        memcpy(&bytes, p, sizeof bytes);
        return bytes;
    }

    static inline TopicsBytes topics_all(unsigned char c) {
        return (TopicsBytes){c, c, c, c, c, c, c, c, c, c, c, c, c, c, c, c};
    }

    /* Where in 16 places a field of one letter may begin: a comma, one of i, k, m, o (one bit makes them the same), a
       colon. It is so seldom another one than ours that the two quotes need no look. */
    static inline TopicsBytes topics_candidates(const unsigned char *p) {
        return (TopicsBytes)((topics_bytes(p) == topics_all(','))
                             & ((topics_bytes(p + 2) | topics_all(6)) == topics_all('m' | 6))
                             & (topics_bytes(p + 4) == topics_all(':')));
    }

    static int topics_field_follows(const unsigned char *p, Py_ssize_t size) {
        const Py_ssize_t reach = 16 + 4;
        uint64_t halves[2];
        if (size < reach)
            return topics_field_occurs(p, size);
        TopicsBytes found = topics_candidates(p + size - reach); /* overlaps the one before */
        for (Py_ssize_t at = 0; at + reach < size; at += 16)
            found |= topics_candidates(p + at);
        memcpy(halves, &found, sizeof halves);
        return (halves[0] | halves[1]) && topics_field_occurs(p, size);
    }
    #else
    #define topics_field_follows topics_field_occurs
    #endif
    """
    bint topics_field_follows(const uint8_t* p, Py_ssize_t size) noexcept nogil


cdef Py_ssize_t value_end(const uint8_t* body, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    """Offset of the comma or the last brace that ends the value at `at`, or -1."""
    cdef Py_ssize_t depth = 0
    cdef uint8_t c
    while at < end:
        c = body[at]
        if c == 0x22:
            at += 1
            while True:
                if at >= end:
                    return -1
                if body[at] == 0x22:
                    break
                at += 2 if body[at] == 0x5C else 1
        elif c == 0x7B or c == 0x5B:
            depth += 1
        elif c == 0x7D or c == 0x5D:
            depth -= 1
            if depth < 0:
                return -1
        elif c == 0x2C and depth == 0:
            return at
        at += 1
    return -1 if depth else end


cdef bint split_body(const uint8_t* body, Py_ssize_t size, Envelope* out) noexcept nogil:
    """Whether `body` is an envelope."""
    cdef Py_ssize_t end = size - 1, at = 1, stop
    cdef uint8_t name
    out.key = out.meta = out.data = NULL
    out.key_size = out.meta_size = out.data_size = 0
    if end < 1 or body[0] != 0x7B or body[end] != 0x7D:
        return False
    while True:
        if at + 4 > end or body[at] != 0x22 or body[at + 2] != 0x22 or body[at + 3] != 0x3A:
            return False
        name = body[at + 1]
        at += 4
        if name == 0x64 and not topics_field_follows(body + at, size - at):
            stop = end
        else:
            stop = value_end(body, at, end)
        if stop <= at:
            return False
        if name == 0x64 and out.data == NULL:
            out.data = body + at
            out.data_size = stop - at
        elif name == 0x6D and out.meta == NULL:
            out.meta = body + at
            out.meta_size = stop - at
        elif name == 0x6B and out.key == NULL:
            out.key = body + at
            out.key_size = stop - at
        else:
            return False
        if stop == end:
            return out.data != NULL
        at = stop + 1


cdef Py_ssize_t envelope_accounted(const uint8_t* body, Py_ssize_t size) noexcept nogil:
    """Compact data + meta bytes, or -1 if the body is not an envelope."""
    cdef Envelope parts
    if not split_body(body, size, &parts):
        return -1
    return parts.data_size + parts.meta_size


cdef object envelope_error(const uint8_t* body, Py_ssize_t size):
    """Raise what the Python twin says of this body."""
    split_raw(PyBytes_FromStringAndSize(<const char*>body, size))
    raise BadEnvelope("it is not an envelope")


cdef object key_of(Envelope* parts):
    cdef const uint8_t* p = parts.key
    cdef Py_ssize_t size = parts.key_size
    if p == NULL:
        return None
    if size >= 2 and p[0] == 0x22 and plain_end(p, 1, size) == size - 1 and p[size - 1] == 0x22:
        if bad_utf8(p, size) < 0:
            return PyUnicode_DecodeUTF8(<const char*>p + 1, size - 2, NULL)
    return decode_key(PyBytes_FromStringAndSize(<const char*>p, size))


cdef inline object meta_of(Envelope* parts):
    if parts.meta == NULL:
        return None
    return PyBytes_FromStringAndSize(<const char*>parts.meta, parts.meta_size)


def split_envelope(body):
    cdef Py_buffer view
    cdef Envelope parts
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        if not split_body(<const uint8_t*>view.buf, view.len, &parts):
            envelope_error(<const uint8_t*>view.buf, view.len)
        return (
            key_of(&parts),
            meta_of(&parts),
            PyBytes_FromStringAndSize(<const char*>parts.data, parts.data_size),
        )
    finally:
        PyBuffer_Release(&view)
