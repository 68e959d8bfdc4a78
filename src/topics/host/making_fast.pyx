# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The compiled twin of `making.py`: same arguments, same results, and the interpreter is free meanwhile."""

import os

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdlib cimport calloc, free

cdef extern from "make_files.h":
    enum: AT_FDCWD
    struct new_file:
        int at
        const char* name
        const char* data
        size_t size
    int make_each(new_file* files, size_t count, int past_cache, size_t* failed) nogil


def make_all(list files not None, bint hot):
    cdef size_t count = len(files), filled = 0, failed = 0
    cdef new_file* made = <new_file*>calloc(count + 1, sizeof(new_file))
    cdef Py_buffer* views = <Py_buffer*>calloc(count + 1, sizeof(Py_buffer))
    cdef int error
    cdef bytes name
    cdef list names = []
    try:
        if made == NULL or views == NULL:
            raise MemoryError()
        for path, at, data in files:
            name = os.fsencode(path)
            if b"\0" in name:
                raise ValueError("embedded null byte")
            names.append(name)
            PyObject_GetBuffer(data, &views[filled], PyBUF_SIMPLE)
            made[filled].at = AT_FDCWD if at is None else at
            made[filled].name = name
            made[filled].data = <const char*>views[filled].buf
            made[filled].size = views[filled].len
            filled += 1
        with nogil:
            error = make_each(made, count, not hot, &failed)
        if error:
            raise OSError(error, os.strerror(error), files[failed][0])
    finally:
        while filled:
            filled -= 1
            PyBuffer_Release(&views[filled])
        free(made)
        free(views)
