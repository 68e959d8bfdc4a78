"""What the refusal of a body tells whoever wrote it."""

from __future__ import annotations

import pytest
from msgspec import Struct

from topics.api.wire import RouterIn, WatchIn, decode
from topics.model.config import TopicConfig
from topics.model.errors import InvalidRequest


@pytest.mark.parametrize(
    ("body", "shape", "words"),
    [
        (b'{"durability":"never"}', TopicConfig, "ephemeral, memory, disk, fsync"),
        (b'{"type":"stack"}', TopicConfig, "log, queue"),
        (b'{"source":"a","dest":"b","guarantee":"none"}', RouterIn, "at_least_once, exactly_once"),
        (b'{"topics":{"a":{}},"consistency":"weak"}', WatchIn, "eventual, strong"),
    ],
)
def test_word_that_is_none_of_the_known_is_told_with_all_of_them(body: bytes, shape: type[Struct], words: str) -> None:
    with pytest.raises(InvalidRequest, match=f"it may be {words}$"):
        decode(body, shape)


def test_other_misfits_are_told_without_a_list_of_words() -> None:
    with pytest.raises(InvalidRequest, match=r"right shape: Expected `int`, got `str` - at `\$\.ttl_ms`$"):
        decode(b'{"ttl_ms":"1h"}', TopicConfig)
