"""Which names the fields of a call may have.

The server ignores what it does not know, as the wire asks; who misspelt `durability` would be told
that all went well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from topics.model.config import FIELDS as CONFIG
from topics.model.errors import InvalidRequest
from topics.model.group import GroupConfig

RECORD: Final = frozenset(("data", "tag", "node", "key", "meta", "delay_ms"))
GROUP_CONFIG: Final = frozenset(field.name for field in msgspec.structs.fields(GroupConfig)) | {"start"}
ROUTER: Final = frozenset(("preserve_node", "preserve_tag", "create_dest", "filter", "allow_cycle", "guarantee"))
FETCH: Final = frozenset(("max", "max_bytes", "claim_idle_ms", "generation"))
CLAIM: Final = frozenset(("max", "seqs", "generation"))
SETTLE: Final = frozenset(("tokens", "generation"))
NACK: Final = SETTLE | {"delay_ms", "count"}
REJECT: Final = SETTLE | {"reason"}
PENDING: Final = frozenset(("member", "min_idle_ms", "parked", "limit", "cursor"))


def check_names(given: Iterable[str], known: frozenset[str], what: str) -> None:
    """`what`: of what they are fields, in words."""
    for name in given:
        if name not in known:
            raise InvalidRequest(f"unknown field {name!r} of {what}; known: {', '.join(sorted(known))}")


def check_config(given: Iterable[str]) -> None:
    for name in given:
        if name not in CONFIG:
            raise InvalidRequest(f"unknown config field {name!r}; known: {', '.join(sorted(CONFIG))}")
