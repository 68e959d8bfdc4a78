# Appends of one turn, gathered into one batch, and the answers to them. gather.py and ack.py say what both are.

cdef class Gather:
    cdef BodyScan scan
    cdef Block ends

    def __cinit__(self):
        memset(&self.scan, 0, sizeof(BodyScan))
        memset(&self.ends, 0, sizeof(Block))

    def __dealloc__(self):
        PyMem_RawFree(self.scan.frames.data)
        PyMem_RawFree(self.scan.entries.data)
        PyMem_RawFree(self.ends.data)

    @property
    def size(self):
        return self.scan.frames.size

    def add(self, bytes text not None, Py_ssize_t start, Py_ssize_t count_max):
        cdef BodyScan* s = &self.scan
        cdef BodyScan before = self.scan
        cdef uint8_t* end
        if start < 0 or start > PyBytes_GET_SIZE(text):
            raise ValueError(f"byte {start} lies outside the text")
        s.p = <const uint8_t*>PyBytes_AS_STRING(text) + start
        s.size = PyBytes_GET_SIZE(text) - start
        s.at = 0
        s.count_max = s.count + count_max
        if s.count_max <= <Py_ssize_t>U32_MAX and take_records(s) and take_byte(s, 0x7D):
            pass_space(s)
            if s.at == s.size:
                end = grow(&self.ends, 4)
                if end != NULL:
                    store32(end, <uint32_t>s.count)
                    return s.count - before.count
        # As if nothing had been there; only memory stays.
        s.frames.size = before.frames.size
        s.entries.size = before.entries.size
        s.count = before.count
        s.accounted = before.accounted
        s.has_tags = before.has_tags
        return 0

    def take(self):
        cdef BodyScan* s = &self.scan
        prepared = Prepared(
            PyByteArray_FromStringAndSize(<char*>s.frames.data, s.frames.size),
            PyByteArray_FromStringAndSize(<char*>s.entries.data, s.entries.size),
            s.count,
            s.accounted,
            bool(s.has_tags),
            PyBytes_FromStringAndSize(<char*>self.ends.data, self.ends.size),
        )
        if s.frames.room > GATHER_KEPT:
            PyMem_RawFree(s.frames.data)
            PyMem_RawFree(s.entries.data)
            memset(s, 0, sizeof(BodyScan))
        s.frames.size = s.entries.size = s.count = s.accounted = 0
        s.has_tags = False
        self.ends.size = 0
        return prepared


cdef Py_ssize_t GATHER_KEPT = 16 * 1024
"""Memory that a gather without records keeps for the next ones: there may be one for each of many topics."""


cdef inline uint8_t* put_ms(uint8_t* out, uint64_t ns) noexcept nogil:
    """Milliseconds with six decimals."""
    out = put_number(out, ns // 1000000)
    out[0] = 0x2E
    put_digits(out + 1, 6, <uint32_t>(ns % 1000000), 6)
    return out + 7


def render_ack(bytes start not None, bytes topic not None, uint64_t first, Py_ssize_t count, bint seqs, bint created,
               bint deduped, bint synced, uint64_t waited_ns, uint64_t total_ns):
    cdef Block block
    cdef Py_ssize_t i, size, head = PyBytes_GET_SIZE(start)
    cdef uint8_t* begin
    cdef uint8_t* out
    cdef uint8_t digits[20]
    cdef uint8_t* digits_end
    cdef uint64_t last = first + <uint64_t>count - 1
    cdef bytes answer
    memset(&block, 0, sizeof(Block))
    begin = out = grow(&block, 512 + PyBytes_GET_SIZE(topic) + (21 * count if seqs else 0))
    if begin == NULL:
        raise MemoryError()
    try:
        out = put(out, b'{"topic":"', 10)
        out = put(out, PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic))
        out = put_number(put(out, b'","first_seq":', 14), first)
        out = put_number(put(out, b',"last_seq":', 12), last)
        if seqs:
            out = put(out, b',"seqs":[', 9)
            for i in range(count):
                out = put_number(out, first + <uint64_t>i)
                out[0] = 0x2C
                out += 1
            (out - 1)[0] = 0x5D
        out = put_number(put(out, b',"head_seq":', 12), last)
        out = put_number(put(out, b',"count":', 9), <uint64_t>count)
        out = put(out, b',"created":true', 15) if created else put(out, b',"created":false', 16)
        out = put(out, b',"deduped":true', 15) if deduped else put(out, b',"deduped":false', 16)
        out = put_ms(put(out, b',"performance":{"server_total_ms":', 34), total_ns)
        if not deduped:
            out = put_ms(put(out, b',"wal_append_ms":', 17), 0 if synced else waited_ns)
            out = put_ms(put(out, b',"fsync_ms":', 12), waited_ns if synced else 0)
        out = put(out, b'}}', 2)
        size = out - begin
        if not head:
            return PyBytes_FromStringAndSize(<char*>begin, size)
        digits_end = put_number(digits, <uint64_t>size)
        answer = PyBytes_FromStringAndSize(NULL, head + (digits_end - digits) + 4 + size)
        out = put(<uint8_t*>PyBytes_AS_STRING(answer), PyBytes_AS_STRING(start), head)
        out = put(out, digits, digits_end - digits)
        put(put(out, b"\r\n\r\n", 4), begin, size)
        return answer
    finally:
        PyMem_RawFree(block.data)
