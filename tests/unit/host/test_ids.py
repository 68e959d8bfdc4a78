"""Ids are as long as asked for and never the same."""

from __future__ import annotations

from topics.host.ids import Ids, SystemIds


def test_tokens_are_hex_of_the_given_length_and_differ() -> None:
    ids: Ids = SystemIds()
    tokens = {ids.token(16) for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(bytes.fromhex(token)) == 16 for token in tokens)
