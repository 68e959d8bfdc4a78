"""Decisions as pure code: events and `now_ms` in, decisions out; no I/O and no clock. Imports only `topics.model`."""
