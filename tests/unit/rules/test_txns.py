"""What a topic remembers of transactions."""

from __future__ import annotations

import pytest

from topics.model.errors import InvalidRequest
from topics.rules.txns import Committed, Txn, TxnMemory, parse_txn


def test_names_are_ids_or_apps_with_a_version() -> None:
    assert parse_txn("batch-7") == Txn("batch-7", None)
    assert parse_txn("app@0") == Txn("app", 0)
    assert parse_txn(f"a.b:c@{(1 << 64) - 1}").name == f"a.b:c@{(1 << 64) - 1}"


@pytest.mark.parametrize("text", ["", "@1", "a@", "a@01", "a@-1", "a@x", "a@1@2", f"a@{1 << 64}", "a b", "é", "a@٣"])
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_txn(text)


def test_highest_version_of_an_app_stands_for_all_below() -> None:
    memory = TxnMemory()
    memory.add(Committed("app@5", "q", 10, 3, 100))
    memory.add(Committed("app@3", "q", 1, 9, 50))
    assert memory.find(parse_txn("app@5")) == Committed("app@5", "q", 10, 3, 100)
    lower = memory.find(parse_txn("app@4"))
    assert lower is not None
    assert (lower.first_seq, lower.records) == (0, 0)
    assert memory.find(parse_txn("app@6")) is None
    assert memory.find(parse_txn("app")) is None
    assert [row.txn for row in memory.rows()] == ["app@5"]


def test_plain_ids_expire_and_apps_do_not() -> None:
    memory = TxnMemory()
    memory.add(Committed("t", "", 1, 1, 1000))
    memory.add(Committed("app@1", "", 2, 1, 1000))
    assert memory.expire(1500, 500) == 0
    assert memory.find(parse_txn("t")) is not None
    assert memory.expire(1501, 500) == 1
    assert memory.find(parse_txn("t")) is None
    assert len(memory) == 1


def test_app_is_foreign_to_another_query_only_where_both_are_known() -> None:
    memory = TxnMemory()
    memory.add(Committed("app@1", "q1", 1, 1, 0))
    memory.add(Committed("bare@1", "", 1, 1, 0))
    memory.add(Committed("plain", "q1", 1, 1, 0))
    assert memory.is_foreign(parse_txn("app@0"), "q2")
    assert memory.is_foreign(parse_txn("app@9"), "q2")
    assert not memory.is_foreign(parse_txn("app@9"), "q1")
    assert not memory.is_foreign(parse_txn("app@9"), "")
    assert not memory.is_foreign(parse_txn("bare@2"), "q2")
    assert not memory.is_foreign(parse_txn("plain"), "q2")
