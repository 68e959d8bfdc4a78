"""The use cases over a store, synchronous: what a server, or a test, drives step by step."""
