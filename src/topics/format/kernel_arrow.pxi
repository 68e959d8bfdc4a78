# Records that come as columns of text, straight to frames. The twin of append_columns.py.

cdef enum:
    COLUMN_BUFFERS = 3


cdef struct ColumnText:
    # A column of text; `given` is false where no row has a value.
    bint given
    const uint8_t* bits     # NULL = every row has a value
    const uint8_t* offsets
    const uint8_t* text
    Py_ssize_t start        # the row that comes first


cdef struct ColumnScan:
    ColumnText columns[TEXT_COLUMNS]  # data, tag, node, key, meta
    Text default_node
    Py_ssize_t rows


cdef inline void column_value(ColumnText* column, Py_ssize_t row, Text* out) noexcept nogil:
    """The text of a row; NULL where it has none."""
    cdef Py_ssize_t first
    out.data = NULL
    out.size = out.spaces = 0
    if not column.given:
        return
    row += column.start
    if column.bits != NULL and not column.bits[row >> 3] >> (row & 7) & 1:
        return
    first = load32(column.offsets + row * 4)
    out.data = column.text + first
    out.size = load32(column.offsets + row * 4 + 4) - first


cdef inline bint column_json(Text* text, Py_ssize_t* keys) noexcept nogil:
    cdef JsonScan found
    found.names = NULL
    if scan_json(text.data, text.size, JSON_DEPTH, &found) != JSON_OK:
        return False
    text.spaces = found.spaces
    text.size -= found.spaces
    keys[0] = found.keys
    return True


cdef inline bint column_name(Text* text, Py_ssize_t limit) noexcept nogil:
    return text.data == NULL or (text.size <= limit and bad_utf8(text.data, text.size) < 0)


cdef bint take_columns(ColumnScan* c, BodyScan* s) noexcept nogil:
    """False at the first row that has not the usual form."""
    cdef Text data, tag, node, key, meta
    cdef Py_ssize_t row, keys = 0, at
    for row in range(c.rows):
        column_value(&c.columns[0], row, &data)
        column_value(&c.columns[1], row, &tag)
        column_value(&c.columns[2], row, &node)
        column_value(&c.columns[3], row, &key)
        column_value(&c.columns[4], row, &meta)
        if node.data == NULL:
            node = c.default_node
        if not column_name(&tag, TAG_BYTES) or not column_name(&node, NODE_BYTES) or not column_name(&key, KEY_BYTES):
            return False
        if key.data != NULL and plain_end(key.data, 0, key.size) != key.size:
            return False
        if meta.data != NULL:
            if not column_json(&meta, &keys):
                return False
            at = 0
            while is_space(meta.data[at]):
                at += 1
            if meta.data[at] == 0x6E:  # a JSON null is no meta
                meta.data = NULL
                meta.size = meta.spaces = 0
            elif meta.size > META_BYTES or keys > META_KEYS:
                return False
        if data.data == NULL:
            data.data = <const uint8_t*>b"null"
            data.size = 4
        elif not column_json(&data, &keys):
            return False
        if data.size + meta.size > RECORD_BYTES or not put_record(s, &data, &tag, &node, &key, &meta):
            return False
        if s.frames.size > APPEND_BYTES:
            return False
    return True


cdef object too_short(object start, object rows):
    return ValueError(f"the buffers of a column are too short for rows {start}..{start + rows}")


cdef int open_column(ColumnText* column, object given, Py_ssize_t rows, Py_buffer* views, int* held) except -1:
    """Lock the buffers of a column and see that they hold its rows."""
    cdef Py_ssize_t start, room, row, last, place
    cdef Py_buffer* text
    column.given = given is not None
    if given is None:
        return 0
    bits, offsets, content, start = given
    column.start = start
    column.bits = NULL
    PyObject_GetBuffer(offsets, &views[held[0]], PyBUF_SIMPLE)
    column.offsets = <const uint8_t*>views[held[0]].buf
    room = views[held[0]].len // 4 - 1
    held[0] += 1
    if start < 0 or rows < 0 or start > room or rows > room - start:
        raise too_short(start, rows)
    if bits is not None:
        PyObject_GetBuffer(bits, &views[held[0]], PyBUF_SIMPLE)
        column.bits = <const uint8_t*>views[held[0]].buf
        held[0] += 1
        if views[held[0] - 1].len < (start + rows + 7) // 8:
            raise too_short(start, rows)
    text = &views[held[0]]
    PyObject_GetBuffer(content, text, PyBUF_SIMPLE)
    held[0] += 1
    # Nothing may lie at NULL, but a text of no bytes is a text.
    column.text = <const uint8_t*>text.buf if text.buf != NULL else <const uint8_t*>b""
    last = <int32_t>load32(column.offsets + start * 4)
    if last < 0:
        raise ValueError("the offsets of a column lie outside its text")
    for row in range(start + 1, start + rows + 1):
        place = <int32_t>load32(column.offsets + row * 4)
        if place < last:
            raise ValueError("the offsets of a column lie outside its text")
        last = place
    if last > text.len:
        raise ValueError("the offsets of a column lie outside its text")
    return 0


cdef bint take_batch(tuple batch, Text* default_node, BodyScan* s, bint is_usual) except? False:
    """Whether this batch, and those before it, have the usual form."""
    cdef Py_buffer views[TEXT_COLUMNS * COLUMN_BUFFERS]
    cdef ColumnScan c
    cdef int held = 0, i
    c.rows = batch[0]
    c.default_node = default_node[0]
    try:
        for i in range(TEXT_COLUMNS):
            open_column(&c.columns[i], batch[i + 1], c.rows, views, &held)
        if is_usual:
            with nogil:
                is_usual = take_columns(&c, s)
    finally:
        for i in range(held):
            PyBuffer_Release(&views[i])
    return is_usual


def prepare_columns(batches, default_node=None):
    cdef BodyScan s
    cdef Text node
    cdef bint is_usual = True
    memset(&s, 0, sizeof(BodyScan))
    memset(&node, 0, sizeof(Text))
    if default_node is not None and not text_part(default_node, NODE_BYTES, &node):
        # Whoever needs it cannot have it.
        node.data = <const uint8_t*>b""
        node.size = NODE_BYTES + 1
    try:
        for batch in batches:
            is_usual = take_batch(batch, &node, &s, is_usual)
        if not is_usual:
            return None
        return Prepared(
            PyByteArray_FromStringAndSize(<char*>s.frames.data, s.frames.size),
            PyByteArray_FromStringAndSize(<char*>s.entries.data, s.entries.size),
            s.count,
            s.accounted,
            bool(s.has_tags),
        )
    finally:
        PyMem_RawFree(s.frames.data)
        PyMem_RawFree(s.entries.data)
