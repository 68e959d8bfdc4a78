# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The compiled twin of `sockets.py`: same arguments, same results.

The interpreter is kept meanwhile. Nothing here waits for long, and a thread that took the interpreter between two sends
could keep it for longer than all of them take.
"""

import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

cdef extern from "send_each.h":
    enum: TOGETHER_MAX
    const Py_ssize_t* send_to_each(const int* files, size_t count, const char* data, size_t size, int helped)

cdef int helped = (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1) > 1
"""There is a processor for a second thread."""


def send_each(files, Py_ssize_t first, Py_ssize_t count, bytes data not None):
    cdef Py_buffer view
    cdef Py_ssize_t place, last, some, at
    cdef Py_ssize_t size = len(data)
    cdef const char* start = data
    cdef const Py_ssize_t* taken
    cdef list short = []
    PyObject_GetBuffer(files, &view, PyBUF_SIMPLE)
    try:
        if view.itemsize != sizeof(int):
            raise TypeError("files are C ints")
        last = min(first + count, view.len // <Py_ssize_t>sizeof(int))
        place = max(first, 0)
        while place < last:
            some = min(last - place, <Py_ssize_t>TOGETHER_MAX)
            taken = send_to_each(<int*>view.buf + place, some, start, size, helped)
            for at in range(some):
                if taken[at] != size:
                    short.append((place + at, taken[at]))
            place += some
    finally:
        PyBuffer_Release(&view)
    return short
