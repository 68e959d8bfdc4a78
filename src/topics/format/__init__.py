"""Bytes and values: what the files hold, without ever touching a file. Imports `topics.model` alone.

`ops` holds the functions that work on whole batches; `kernel.pyx` is their compiled twin.
"""
