# Integers, frames and entries in memory.

cdef enum:
    TAG = 1
    KEPT = 0xF3  # segment.KEPT
    NODE = 2
    DURABLE = 4
    MORE = 8
    HOLE = 4
    APPEND = 1
    CHECKPOINT_MARK = 8
    WAL_HEADER = 38
    WAL_OVERHEAD = 46
    SEGMENT_HEADER = 29
    SEGMENT_OVERHEAD = 38
    ENTRY_SIZE = 20
    ACCOUNTED_MAX = 0xFFFFFF


cdef inline uint16_t load16(const uint8_t* p) noexcept nogil:
    cdef uint16_t value
    memcpy(&value, p, 2)
    return value


cdef inline uint32_t load32(const uint8_t* p) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, p, 4)
    return value


cdef inline uint64_t load64(const uint8_t* p) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, p, 8)
    return value


cdef inline void store16(uint8_t* p, uint16_t value) noexcept nogil:
    memcpy(p, &value, 2)


cdef inline void store32(uint8_t* p, uint32_t value) noexcept nogil:
    memcpy(p, &value, 4)


cdef inline void store64(uint8_t* p, uint64_t value) noexcept nogil:
    memcpy(p, &value, 8)


cdef inline void store_entry(
    uint8_t* p, uint32_t offset, uint32_t length, uint64_t ts, uint8_t flags, uint64_t accounted
) noexcept nogil:
    if accounted > ACCOUNTED_MAX:
        accounted = ACCOUNTED_MAX
    store32(p, offset)
    store32(p + 4, length)
    store64(p + 8, ts)
    store32(p + 16, <uint32_t>flags | (<uint32_t>accounted << 8))


cdef struct Block:
    # Bytes that grow while the GIL is released.
    uint8_t* data
    Py_ssize_t size
    Py_ssize_t room


cdef inline uint8_t* grow(Block* block, Py_ssize_t size) noexcept nogil:
    """The place of `size` more bytes, or NULL if there is no memory."""
    cdef Py_ssize_t room
    cdef void* moved
    if block.size + size > block.room:
        room = block.size + size
        room += (room >> 1) + 1024
        moved = PyMem_RawRealloc(block.data, room)
        if moved == NULL:
            return NULL
        block.data = <uint8_t*>moved
        block.room = room
    block.size += size
    return block.data + block.size - size


cdef Py_ssize_t bad_utf8(const uint8_t* p, Py_ssize_t size) noexcept nogil:
    """Offset of the first sequence that is not UTF-8, or -1."""
    cdef Py_ssize_t at = 0
    cdef uint8_t lead, low, high
    cdef int more, i
    while at < size:
        while at + 32 <= size and not (
            (load64(p + at) | load64(p + at + 8) | load64(p + at + 16) | load64(p + at + 24)) & 0x8080808080808080U
        ):
            at += 32
        while at + 8 <= size and not load64(p + at) & 0x8080808080808080U:
            at += 8
        if at == size:
            return -1
        lead = p[at]
        if lead < 0x80:
            at += 1
            continue
        low = 0x80
        high = 0xBF
        if 0xC2 <= lead <= 0xDF:
            more = 1
        elif 0xE0 <= lead <= 0xEF:
            more = 2
            if lead == 0xE0:
                low = 0xA0
            elif lead == 0xED:
                high = 0x9F
        elif 0xF0 <= lead <= 0xF4:
            more = 3
            if lead == 0xF0:
                low = 0x90
            elif lead == 0xF4:
                high = 0x8F
        else:
            return at
        if at + more >= size or not low <= p[at + 1] <= high:
            return at
        for i in range(2, more + 1):
            if p[at + i] & 0xC0 != 0x80:
                return at
        at += more + 1
    return -1


cdef inline bint known_kind(uint8_t kind) noexcept nogil:
    return 1 <= kind <= 11 or 64 <= kind <= 66 or kind == 80 or 85 <= kind <= 87 or kind == 90


cdef inline Py_ssize_t plain_frame(const uint8_t* p, Py_ssize_t left) noexcept nogil:
    """Length of what may be a WAL frame by its lengths and kind alone, or -1."""
    cdef uint64_t frame_len
    if left < WAL_OVERHEAD:
        return -1
    frame_len = load32(p)
    if frame_len != <uint64_t>(WAL_OVERHEAD - 4) + load16(p + 30) + load16(p + 32) + load32(p + 34):
        return -1
    if frame_len > FRAME_BYTES or frame_len + 4 > <uint64_t>left or not known_kind(p[4]):
        return -1
    return <Py_ssize_t>frame_len + 4


cdef inline Py_ssize_t accounted_frame(const uint8_t* p, Py_ssize_t length) noexcept nogil:
    """Check the rest of a frame that `plain_frame` let through: its accounted bytes (0 on control frames), or -1."""
    cdef Py_ssize_t names = load16(p + 30) + load16(p + 32)
    if XXH3_64bits(p + 4, length - 12) != load64(p + length - 8):
        return -1
    # Node and tag apart: two broken halves must not make one good character.
    if names and (
        bad_utf8(p + WAL_HEADER, load16(p + 30)) >= 0
        or bad_utf8(p + WAL_HEADER + load16(p + 30), load16(p + 32)) >= 0
    ):
        return -1
    if p[4] != APPEND:
        return 0
    return envelope_accounted(p + WAL_HEADER + names, length - WAL_OVERHEAD - names)


cdef inline bint is_wal_record(
    const uint8_t* buf, Py_ssize_t size, int64_t at, uint32_t length, uint64_t seq, uint64_t topic_id
) noexcept nogil:
    """Whether the Append frame of this topic and seq lies whole at `at`."""
    cdef const uint8_t* p
    if at < 0 or length < WAL_OVERHEAD or at + <int64_t>length > size:
        return False
    p = buf + at
    return (
        <uint64_t>load32(p) + 4 == length
        and length == <uint64_t>WAL_OVERHEAD + load16(p + 30) + load16(p + 32) + load32(p + 34)
        and p[4] == APPEND
        and load64(p + 6) == topic_id
        and load64(p + 14) == seq
        and XXH3_64bits(p + 4, length - 12) == load64(p + length - 8)
    )


cdef inline bint is_segment_record(
    const uint8_t* buf, Py_ssize_t size, int64_t at, uint32_t length, uint64_t seq
) noexcept nogil:
    """Whether the segment frame of this seq lies whole at `at`."""
    cdef const uint8_t* p
    if at < 0 or length < SEGMENT_OVERHEAD or at + <int64_t>length > size:
        return False
    p = buf + at
    return (
        <uint64_t>load32(p) + 4 == length
        and length == <uint64_t>SEGMENT_OVERHEAD + load16(p + 21) + load16(p + 23) + load32(p + 25)
        and load64(p + 5) == seq
        and XXH3_64bits(p + 4, length - 13) == load64(p + length - 9)
    )


def xxh3_64(buf):
    cdef Py_buffer view
    cdef uint64_t result
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        if view.len >= RELEASE_GIL_BYTES:
            with nogil:
                result = XXH3_64bits(view.buf, view.len)
        else:
            result = XXH3_64bits(view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return result
