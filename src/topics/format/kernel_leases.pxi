# Rows of leases as bytes. The twin of leases.py.

cdef inline uint64_t lease_number(object value) except? 0xFFFFFFFFFFFFFFFE:
    try:
        return <uint64_t>value
    except OverflowError:
        raise OverflowError("a number of a lease has more than 64 bits") from None


def pack_leases(rows, Py_ssize_t start, shift):
    cdef Py_ssize_t i, count
    cdef bytes out
    cdef uint8_t* place
    cdef uint64_t known = 0, shifted = 0
    cdef list all_rows = list(rows)
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
