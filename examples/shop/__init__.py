"""A small shop whose events go all the way: topics, a stream over them, the history table, a report."""
