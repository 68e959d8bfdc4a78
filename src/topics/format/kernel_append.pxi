# The body of an append, from text to frames in one pass. It takes the usual form of a body and leaves every other to
# the slow way (`compact_body`, a decoder, `prepare`), which also finds the words for what is wrong: so the two can only
# differ in speed. append_body.py says what the usual form is.

cdef enum:
    # Bits of the fields a record has.
    HAS_DATA = 1
    HAS_TAG = 2
    HAS_NODE = 4
    HAS_KEY = 8
    HAS_META = 16

cdef struct BodyScan:
    const uint8_t* p
    Py_ssize_t size
    Py_ssize_t at
    Block frames
    Block entries
    Py_ssize_t count
    Py_ssize_t count_max
    Py_ssize_t accounted
    bint has_tags
    bint lacks_node  # some record has none of its own


cdef inline void pass_space(BodyScan* s) noexcept nogil:
    while s.at < s.size and is_space(s.p[s.at]):
        s.at += 1


cdef inline bint take_byte(BodyScan* s, uint8_t c) noexcept nogil:
    """Whether `c` comes next, space aside; it is passed then."""
    pass_space(s)
    if s.at < s.size and s.p[s.at] == c:
        s.at += 1
        return True
    return False


cdef inline bint plain_string(BodyScan* s, Text* out) noexcept nogil:
    """A string without escapes: its text lies in the body."""
    cdef Py_ssize_t start, end
    pass_space(s)
    if s.at >= s.size or s.p[s.at] != 0x22:
        return False
    start = s.at + 1
    end = plain_end(s.p, start, s.size)
    if end >= s.size or s.p[end] != 0x22:
        return False
    out.data = s.p + start
    out.size = end - start
    out.spaces = 0
    s.at = end + 1
    return True


cdef inline bint take_null(BodyScan* s) noexcept nogil:
    pass_space(s)
    if s.size - s.at >= 4 and memcmp(s.p + s.at, b"null", 4) == 0:
        s.at += 4
        return True
    return False


cdef inline bint take_value(BodyScan* s, Text* out, Py_ssize_t* keys) noexcept nogil:
    cdef JsonScan found
    found.names = NULL
    found.quotes = NULL
    pass_space(s)
    out.data = s.p + s.at
    if scan_value(s.p, &s.at, s.size, JSON_DEPTH, &found) != JSON_OK:
        return False
    out.spaces = found.spaces
    out.size = s.p + s.at - out.data - found.spaces
    keys[0] = found.keys
    return True


cdef inline int field_of(Text* name) noexcept nogil:
    if name.size == 4 and memcmp(name.data, b"data", 4) == 0:
        return HAS_DATA
    if name.size == 3 and memcmp(name.data, b"tag", 3) == 0:
        return HAS_TAG
    if name.size == 4 and memcmp(name.data, b"node", 4) == 0:
        return HAS_NODE
    if name.size == 3 and memcmp(name.data, b"key", 3) == 0:
        return HAS_KEY
    if name.size == 4 and memcmp(name.data, b"meta", 4) == 0:
        return HAS_META
    return 0


cdef bint take_record(BodyScan* s) noexcept nogil:
    cdef Text name, data, tag, node, key, meta
    cdef int fields = 0, field
    cdef Py_ssize_t keys = 0, meta_keys = 0
    tag.data = node.data = key.data = meta.data = data.data = NULL
    tag.size = node.size = key.size = meta.size = data.size = 0
    meta.spaces = data.spaces = 0
    if not take_byte(s, 0x7B):
        return False
    while True:
        if not plain_string(s, &name) or not take_byte(s, 0x3A):
            return False
        field = field_of(&name)
        if field == 0 or fields & field:
            return False
        fields |= field
        if field == HAS_DATA:
            if not take_value(s, &data, &keys):
                return False
        elif take_null(s):
            pass  # as if it were not there
        elif field == HAS_META:
            if not take_value(s, &meta, &meta_keys) or meta.size > META_BYTES or meta_keys > META_KEYS:
                return False
        elif field == HAS_TAG:
            if not plain_string(s, &tag) or tag.size > TAG_BYTES:
                return False
        elif field == HAS_NODE:
            if not plain_string(s, &node) or node.size > NODE_BYTES:
                return False
        elif not plain_string(s, &key) or key.size > KEY_BYTES:
            return False
        if take_byte(s, 0x2C):
            continue
        if not take_byte(s, 0x7D):
            return False
        break
    if not fields & HAS_DATA or data.size + meta.size > RECORD_BYTES or s.count == s.count_max:
        return False
    return put_record(s, &data, &tag, &node, &key, &meta)


cdef bint put_record(BodyScan* s, Text* data, Text* tag, Text* node, Text* key, Text* meta) noexcept nogil:
    """The same bytes that `prepare` writes."""
    cdef Py_ssize_t body_size = data.size + 6, length, offset = s.frames.size
    cdef uint8_t flags = 0
    cdef uint8_t* out
    cdef uint8_t* entry
    if key.data != NULL:
        body_size += key.size + 7
    if meta.data != NULL:
        body_size += meta.size + 5
    if tag.data != NULL:
        flags |= TAG
        s.has_tags = True
    if node.data != NULL:
        flags |= NODE
    else:
        s.lacks_node = True
    length = WAL_OVERHEAD + node.size + tag.size + body_size
    out = grow(&s.frames, length)
    entry = grow(&s.entries, ENTRY_SIZE)
    if out == NULL or entry == NULL:
        return False
    store32(out, <uint32_t>(length - 4))
    out[4] = APPEND
    out[5] = flags
    store64(out + 6, 0)
    store64(out + 14, 0)
    store64(out + 22, 0)
    store16(out + 30, <uint16_t>node.size)
    store16(out + 32, <uint16_t>tag.size)
    store32(out + 34, <uint32_t>body_size)
    out += WAL_HEADER
    if node.size:
        out = put(out, node.data, node.size)
    if tag.size:
        out = put(out, tag.data, tag.size)
    out[0] = 0x7B
    out += 1
    if key.data != NULL:
        out = put(out, b'"k":"', 5)
        if key.size:
            out = put(out, key.data, key.size)
        out = put(out, b'",', 2)
    if meta.data != NULL:
        out = put_json(put(out, b'"m":', 4), meta)
        out[0] = 0x2C
        out += 1
    out = put_json(put(out, b'"d":', 4), data)
    out[0] = 0x7D
    store64(out + 1, 0)
    store_entry(entry, <uint32_t>offset, <uint32_t>length, 0, flags, data.size + meta.size)
    s.count += 1
    s.accounted += data.size + meta.size
    return True


cdef bint take_records(BodyScan* s) noexcept nogil:
    """From the start of the body behind the bracket that closes its records, which must be its first field."""
    cdef Text name
    if bad_utf8(s.p, s.size) >= 0 or not take_byte(s, 0x7B):
        return False
    if not plain_string(s, &name) or name.size != 7 or memcmp(name.data, b"records", 7) != 0:
        return False
    if not take_byte(s, 0x3A) or not take_byte(s, 0x5B):
        return False
    while True:
        if not take_record(s):
            return False
        if take_byte(s, 0x2C):
            continue
        return take_byte(s, 0x5D) and s.frames.size <= APPEND_BYTES


def prepare_body(bytes text not None, Py_ssize_t count_max):
    cdef BodyScan s
    cdef bint good
    memset(&s, 0, sizeof(BodyScan))
    s.p = <const uint8_t*>PyBytes_AS_STRING(text)
    s.size = PyBytes_GET_SIZE(text)
    s.count_max = count_max
    try:
        if s.size > 512 and grow(&s.frames, s.size) != NULL:  # about what the frames take
            s.frames.size = 0
        if s.size >= RELEASE_GIL_BYTES:
            with nogil:
                good = take_records(&s)
        else:
            good = take_records(&s)
        if not good:
            return None
        prepared = Prepared(
            PyByteArray_FromStringAndSize(<char*>s.frames.data, s.frames.size),
            PyByteArray_FromStringAndSize(<char*>s.entries.data, s.entries.size),
            s.count,
            s.accounted,
            bool(s.has_tags),
        )
        # What is left of the body, as a body whose records have been taken out.
        return prepared, b'{"records":[]' + text[s.at :], bool(s.lacks_node)
    finally:
        PyMem_RawFree(s.frames.data)
        PyMem_RawFree(s.entries.data)
