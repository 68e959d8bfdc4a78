# Frames as the JSON of an answer. The twin of render.py.

cdef enum:
    # What render_frames() says beyond what locate() does.
    BAD_BODY = 3
    BAD_NODE = 4
    BAD_TAG = 5
    NO_MEMORY = 6

cdef enum:
    # Bits of `want`, as in render.py.
    WANT_TAGS = 1
    WANT_META = 2
    WANT_KEYS = 4
    WANT_DATA = 8
    AS_JOB = 16
    AS_DELIVERY = 32

cdef enum:
    NODES_MAX = 64

cdef struct Render:
    const uint8_t* buf
    Py_ssize_t size
    const uint8_t* entries
    const uint8_t* dead
    Py_ssize_t count
    uint64_t first_seq
    int layout
    int64_t base
    int want
    uint8_t separator
    const uint8_t* nodes[NODES_MAX]
    Py_ssize_t node_sizes[NODES_MAX]
    int node_count
    int64_t limit
    int64_t budget
    bint forced
    # Of each record: the token of its lease, and how often it was handed out.
    const uint64_t* leases
    uint64_t deadline
    # Results.
    int64_t delivered
    int64_t delivered_bytes
    Py_ssize_t walked
    Parts fault


cdef inline uint8_t* put_number(uint8_t* out, uint64_t value) noexcept nogil:
    cdef uint8_t digits[20]
    cdef int i = 20
    cdef uint32_t low
    while value >= 100000000:
        low = <uint32_t>(value % 100000000)
        value = value // 100000000
        i = put_digits(digits, i, low, 8)
    i = put_digits(digits, i, <uint32_t>value, 1)
    memcpy(out, digits + i, 20 - i)
    return out + 20 - i


cdef inline int put_digits(uint8_t* digits, int at, uint32_t value, int least) noexcept nogil:
    """Write `value` so that it ends before `at`, in `least` digits or more; where it begins."""
    cdef int stop = at - least
    while value or at > stop:
        at -= 1
        digits[at] = <uint8_t>(0x30 + value % 10)
        value = value // 10
    return at


cdef uint8_t* put_text(uint8_t* out, const uint8_t* p, Py_ssize_t size) noexcept nogil:
    """A JSON string; at most six bytes for each of `p`, and two quotes."""
    cdef Py_ssize_t at = 0, end
    cdef uint8_t c, high
    out[0] = 0x22
    out += 1
    while True:
        end = plain_end(p, at, size)
        memcpy(out, p + at, end - at)
        out += end - at
        if end == size:
            break
        c = p[end]
        out[0] = 0x5C
        if c == 0x22 or c == 0x5C:
            out[1] = c
            out += 2
        elif c == 0x08 or c == 0x09 or c == 0x0A or c == 0x0C or c == 0x0D:
            out[1] = 0x62 if c == 0x08 else 0x74 if c == 0x09 else 0x6E if c == 0x0A else 0x66 if c == 0x0C else 0x72
            out += 2
        else:
            memcpy(out + 1, b"u00", 3)
            high = c >> 4
            out[4] = 0x30 + high
            c &= 15
            out[5] = 0x30 + c if c < 10 else 0x57 + c
            out += 6
        at = end + 1
    out[0] = 0x22
    return out + 1


cdef uint8_t* put_hex(uint8_t* out, uint64_t value) noexcept nogil:
    cdef uint8_t digits[16]
    cdef int i = 16
    cdef uint8_t low
    while value or i == 16:
        i -= 1
        low = <uint8_t>(value & 15)
        digits[i] = 0x30 + low if low < 10 else 0x57 + low
        value >>= 4
    return put(out, digits + i, 16 - i)


cdef uint8_t* put_lease(uint8_t* out, Render* r, Py_ssize_t i) noexcept nogil:
    """What a job says of its lease; at most 110 bytes."""
    out = put_hex(put(out, b',"lease_id":"lease_', 19), r.leases[2 * i])
    out = put_number(put(out, b'","deadline":', 13), r.deadline)
    return put_number(put(out, b',"deliveries":', 14), r.leases[2 * i + 1])


cdef uint8_t* put_delivery(uint8_t* out, Render* r, Py_ssize_t i) noexcept nogil:
    """What a group's record says of its lease; at most 110 bytes."""
    out = put_number(put(out, b',"delivery":{"count":', 21), r.leases[2 * i + 1])
    out = put_number(put(out, b',"token":', 9), r.leases[2 * i])
    out = put_number(put(out, b',"deadline":', 12), r.deadline)
    out[0] = 0x7D
    return out + 1


cdef inline bint is_excluded(Render* r, Parts* parts) noexcept nogil:
    cdef Py_ssize_t size = parts.tag - parts.node
    cdef int i
    if not parts.flags & NODE:
        return False
    for i in range(r.node_count):
        if r.node_sizes[i] == size and memcmp(r.nodes[i], parts.node, size) == 0:
            return True
    return False


cdef inline bint has_names_of(Parts* parts, Parts* other) noexcept nogil:
    return (
        (parts.flags ^ other.flags) & (NODE | TAG) == 0
        and parts.tag - parts.node == other.tag - other.node
        and parts.body - parts.tag == other.body - other.tag
        and memcmp(parts.node, other.node, parts.body - parts.node) == 0
    )


cdef int render_frames(Render* r, Block* block) noexcept nogil:
    """Write records into `block` until a limit, the budget or the end is reached."""
    cdef const uint8_t* entry
    cdef Parts parts
    cdef Envelope envelope
    cdef Py_ssize_t i, room
    cdef int64_t accounted
    cdef int why
    cdef uint8_t* start
    cdef uint8_t* out
    # One batch has one time: its digits are made once.
    cdef uint8_t time_text[32]
    cdef Py_ssize_t time_size = 0
    cdef uint64_t time_of = 0
    # Neighbours often share node and tag: what was written for the last record is copied.
    cdef Parts named
    cdef Py_ssize_t names_at = -1, names_size = 0
    memset(&named, 0, sizeof(Parts))
    for i in range(r.count):
        if r.delivered >= r.limit:
            break
        entry = r.entries + i * ENTRY_SIZE
        if is_hole(entry) or (r.dead != NULL and r.dead[i]):
            r.walked = i + 1
            continue
        why = locate(r.buf, r.size, <int64_t>load32(entry) - r.base, load32(entry + 4), r.layout, &parts)
        if why != PART_OK:
            return why
        if r.node_count and is_excluded(r, &parts):
            r.walked = i + 1
            continue
        if not split_body(parts.body, parts.end - parts.body, &envelope):
            r.fault = parts
            return BAD_BODY
        accounted = envelope.data_size + envelope.meta_size
        if r.delivered_bytes + accounted > r.budget and not (r.forced and r.delivered == 0):
            break
        room = 256 + (parts.end - parts.body) + 6 * (parts.body - parts.node)
        start = grow(block, room)
        if start == NULL:
            return NO_MEMORY
        out = start
        if r.delivered:
            out[0] = r.separator
            out += 1
        out = put_number(put(out, b'{"$seq":', 8), r.first_seq + i)
        if r.want & AS_JOB:
            out = put_lease(out, r, i)
        if time_size == 0 or time_of != parts.ts:
            time_of = parts.ts
            time_size = put_number(put(time_text, b',"$ts":', 7), time_of) - time_text
        memcpy(out, time_text, 32)
        out += time_size
        if names_at >= 0 and has_names_of(&parts, &named):
            out = put(out, block.data + names_at, names_size)
        else:
            names_at = out - block.data
            if parts.flags & NODE and not r.want & AS_JOB:
                if bad_utf8(parts.node, parts.tag - parts.node) >= 0:
                    r.fault = parts
                    return BAD_NODE
                out = put_text(put(out, b',"$node":', 9), parts.node, parts.tag - parts.node)
            if r.want & WANT_TAGS and parts.flags & TAG:
                if bad_utf8(parts.tag, parts.body - parts.tag) >= 0:
                    r.fault = parts
                    return BAD_TAG
                out = put_text(put(out, b',"$tag":', 8), parts.tag, parts.body - parts.tag)
            names_size = out - block.data - names_at
            named = parts
        if r.want & WANT_KEYS and envelope.key != NULL:
            out = put(put(out, b',"$key":', 8), envelope.key, envelope.key_size)
        if r.want & WANT_DATA:
            out = put(put(out, b',"data":', 8), envelope.data, envelope.data_size)
        if r.want & WANT_META and envelope.meta != NULL:
            out = put(put(out, b',"meta":', 8), envelope.meta, envelope.meta_size)
        if r.want & AS_DELIVERY:
            out = put_delivery(out, r, i)
        out[0] = 0x7D
        block.size -= room - (out + 1 - start)
        r.delivered += 1
        r.delivered_bytes += accounted
        r.walked = i + 1
    return PART_OK


cdef uint64_t* held_of(object leases, Py_ssize_t count) except? NULL:
    """(token, deliveries) of rows (seq, token, until, deliveries): whoever gets this frees it."""
    cdef list rows
    cdef Py_ssize_t i
    cdef uint64_t* held
    cdef uint64_t token_of_first, given
    cdef bint is_run = isinstance(leases, LeaseRun)
    if len(leases) != count:
        raise ValueError(f"{len(leases)} leases do not go with {count} records")
    held = <uint64_t*>PyMem_RawRealloc(NULL, max(16 * count, 16))
    if held == NULL:
        raise MemoryError()
    try:
        if is_run and count:
            _seq, token, _until, deliveries = leases[count - 1]
            held[2 * count - 2] = token
            token_of_first, given = leases.token, deliveries
            for i in range(count):
                held[2 * i] = token_of_first + i
                held[2 * i + 1] = given
            return held
        rows = list(leases)
        for i in range(count):
            _seq, token, _until, deliveries = rows[i]
            held[2 * i] = token
            held[2 * i + 1] = deliveries
    except BaseException:
        PyMem_RawFree(held)
        raise
    return held


def render_json(buf, entries, Py_ssize_t start_index, Py_ssize_t count, uint64_t first_seq, int layout, int64_t base,
                dead, int want, tuple exclude_nodes not None, limit, budget, bint forced, uint8_t separator,
                leases=(), uint64_t deadline=0):
    cdef Py_buffer view, index
    cdef uint64_t* held = NULL
    cdef Render r
    cdef Block block
    cdef int why
    cdef bytes node
    check_layout(layout)
    check_base(base)
    if len(exclude_nodes) > NODES_MAX:
        raise ValueError(f"{len(exclude_nodes)} nodes are more than {NODES_MAX}")
    r.node_count = 0
    for node in exclude_nodes:
        r.nodes[r.node_count] = <const uint8_t*>PyBytes_AS_STRING(node)
        r.node_sizes[r.node_count] = PyBytes_GET_SIZE(node)
        r.node_count += 1
    r.deadline = deadline
    block.data = NULL
    block.size = block.room = 0
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        if want & (AS_JOB | AS_DELIVERY):
            held = held_of(leases, count)
        r.leases = held
        PyObject_GetBuffer(entries, &index, PyBUF_SIMPLE)
        try:
            check_entries(index.len, start_index, count)
            r.buf = <const uint8_t*>view.buf
            r.size = view.len
            r.entries = <const uint8_t*>index.buf + start_index * ENTRY_SIZE
            r.dead = check_dead(dead, count)
            r.count = count
            r.first_seq = first_seq
            r.layout = layout
            r.base = base
            r.want = want
            r.separator = separator
            r.limit = min(limit, 1 << 62)
            r.budget = min(budget, 1 << 62)
            r.forced = forced
            r.delivered = r.delivered_bytes = r.walked = 0
            # About what the answer takes, in one piece; more is asked for where names need escapes.
            if grow(&block, min(<Py_ssize_t>entries_size(r.entries, count), min(r.budget, 1 << 24))
                    + (64 * count if held != NULL else 0) + 1024) == NULL:
                raise MemoryError()
            block.size = 0
            if min(entries_size(r.entries, count), <uint64_t>r.budget) >= <uint64_t>RELEASE_GIL_BYTES:
                with nogil:
                    why = render_frames(&r, &block)
            else:
                why = render_frames(&r, &block)
            if why == PART_OUTSIDE:
                raise ValueError("an entry points outside the buffer")
            if why == PART_LENGTHS:
                raise ValueError("a frame's lengths do not match its entry")
            if why == BAD_BODY:
                envelope_error(r.fault.body, r.fault.end - r.fault.body)
            if why == BAD_NODE:
                PyUnicode_DecodeUTF8(<const char*>r.fault.node, r.fault.tag - r.fault.node, NULL)
            if why == BAD_TAG:
                PyUnicode_DecodeUTF8(<const char*>r.fault.tag, r.fault.body - r.fault.tag, NULL)
            if why == NO_MEMORY:
                raise MemoryError()
            return (
                PyBytes_FromStringAndSize(<char*>block.data, block.size),
                r.delivered,
                r.delivered_bytes,
                r.walked,
            )
        finally:
            PyBuffer_Release(&index)
    finally:
        PyBuffer_Release(&view)
        PyMem_RawFree(block.data)
        PyMem_RawFree(held)
