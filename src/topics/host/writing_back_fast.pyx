# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The compiled twin of `writing_back.py`: same arguments, same results. What the call met is raised by the call itself,
for a signal handler runs before the next line of Python does, and might hide it."""

import os

cdef extern from "write_back.h":
    int write_back_all(int fd) nogil


def write_back(int fd):
    cdef int error
    with nogil:
        error = write_back_all(fd)
    if error:
        raise OSError(error, os.strerror(error))
