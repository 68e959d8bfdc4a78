# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The compiled twins of `batchops.py`: same arguments, same results, same errors.

Layouts and rules are explained there and in frame.py, segment.py, envelope.py, jsontext.py; here stands only what makes
them fast. Every byte of a buffer is treated as hostile: a length is compared with what is left before it is used. Long
work releases the GIL; the buffers stay locked meanwhile, so nobody can resize them.

Modules that compute checksums import this one, so they are imported late, on the paths that report errors.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from cpython.ref cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset

import msgspec
from collections.abc import Mapping

from topics.format.envelope import BadEnvelope, decode_key, split_raw
from topics.format.jsontext import DEPTH_LIMIT, WHYS, BadJson
from topics.format.prepared import Prepared, WalScan
from topics.format.values import encode, encode_value, refuse_bytes
from topics.model import limits
from topics.model.errors import InvalidRecord
from topics.model.leaserows import LeaseRun

cdef extern from "xxhash.h" nogil:
    uint64_t XXH3_64bits(const void* data, size_t size)

cdef extern from * nogil:
    int __builtin_ctzll(unsigned long long)

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    PyObject* PyDict_GetItemWithError(object mapping, object key) except? NULL
    Py_ssize_t PyDict_Size(object mapping)
    int PyDict_Next(object mapping, Py_ssize_t* place, PyObject** name, PyObject** value)

cdef Py_ssize_t RELEASE_GIL_BYTES = 256 * 1024
"""Below this the work is shorter than the wait for the GIL afterwards may be."""

cdef uint64_t FRAME_BYTES = limits.FRAME_BYTES
cdef Py_ssize_t APPEND_BYTES = limits.APPEND_BYTES
cdef uint64_t HOLE_RUN = limits.HOLE_RUN
cdef uint64_t U32_MAX = 0xFFFFFFFF

include "kernel_bytes.pxi"
include "kernel_json.pxi"
include "kernel_envelope.pxi"
include "kernel_prepare.pxi"
include "kernel_scan.pxi"
include "kernel_entries.pxi"
include "kernel_keys.pxi"
include "kernel_render.pxi"
include "kernel_columns.pxi"
include "kernel_decode.pxi"
include "kernel_append.pxi"
include "kernel_arrow.pxi"
include "kernel_staged.pxi"
include "kernel_gather.pxi"
include "kernel_leases.pxi"
