# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The compiled twin of `sockets.py`: same arguments, same results.

The interpreter is kept meanwhile. Nothing here waits, and a thread that took the interpreter between two sends could
keep it for longer than all of them take.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

cdef extern from *:
    """
    #include <sys/types.h>
    #include <sys/socket.h>
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0
    #endif
    """
    Py_ssize_t send(int file, const void* data, size_t size, int flags)
    int MSG_DONTWAIT
    int MSG_NOSIGNAL


def send_each(files, Py_ssize_t first, Py_ssize_t count, bytes data not None):
    cdef Py_buffer view
    cdef Py_ssize_t slot, last, sent, size = len(data)
    cdef const char* start = data
    cdef list short = []
    PyObject_GetBuffer(files, &view, PyBUF_SIMPLE)
    try:
        if view.itemsize != sizeof(int):
            raise TypeError("files are C ints")
        last = min(first + count, view.len // <Py_ssize_t>sizeof(int))
        for slot in range(max(first, 0), last):
            sent = send((<int*>view.buf)[slot], start, size, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent != size:
                short.append((slot, max(sent, 0)))
    finally:
        PyBuffer_Release(&view)
    return short
