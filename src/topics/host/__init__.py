"""All that we take from the machine: files, clocks, random ids, blob stores. Imports only `topics.model`.

Each module holds a protocol and the real thing behind it; `topics.testing` has the fakes.
"""
