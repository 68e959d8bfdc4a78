# Rows of leases as bytes. The twin of leases.py.

cdef inline uint64_t lease_number(object value) except? 0xFFFFFFFFFFFFFFFE:
    try:
        return <uint64_t>value
    except OverflowError:
        raise OverflowError("a number of a lease has more than 64 bits") from None


cdef bytes pack_run(run, Py_ssize_t start, shift):
    cdef Py_ssize_t i, count = len(run) - start
    cdef bytes out
    cdef uint8_t* place
    cdef uint64_t seq, token, until, deliveries
    if start < 0 or count < 0:
        raise ValueError(f"row {start} lies outside the {len(run)} rows")
    if count == 0:
        return b""
    first, last = run[start], run[len(run) - 1]
    lease_number(last[0]), lease_number(last[1])
    seq, token, deliveries = lease_number(first[0]), lease_number(first[1]), lease_number(first[3])
    until = lease_number(first[2] + shift) if first[2] else 0
    out = PyBytes_FromStringAndSize(NULL, 32 * count)
    place = <uint8_t*>PyBytes_AS_STRING(out)
    for i in range(count):
        store64(place, seq + i)
        store64(place + 8, token + i)
        store64(place + 16, until)
        store64(place + 24, deliveries)
        place += 32
    return out


def pack_leases(rows, Py_ssize_t start, shift):
    cdef Py_ssize_t i, count
    cdef bytes out
    cdef uint8_t* place
    cdef uint64_t known = 0, shifted = 0
    cdef list all_rows
    if isinstance(rows, LeaseRun):
        return pack_run(rows, start, shift)
    all_rows = list(rows)
    count = PyList_GET_SIZE(all_rows) - start
    if start < 0 or count < 0:
        raise ValueError(f"row {start} lies outside the {len(all_rows)} rows")
    out = PyBytes_FromStringAndSize(NULL, 32 * count)
    place = <uint8_t*>PyBytes_AS_STRING(out)
    for i in range(count):
        seq, token, until, deliveries = all_rows[start + i]
        store64(place, lease_number(seq))
        store64(place + 8, lease_number(token))
        # One call has one deadline.
        if i == 0 or lease_number(until) != known:
            known = lease_number(until)
            shifted = lease_number(until + shift) if until else 0
        store64(place + 16, shifted)
        store64(place + 24, lease_number(deliveries))
        place += 32
    return out
