"""Keys, scopes, prefixes, slots, and where a server without keys may listen."""

from __future__ import annotations

import hmac
import pickle

import pytest

from topics.api import auth
from topics.api.auth import ALL_SCOPES, ANYONE, Scope, Slots, bearer, check_bind, is_loopback, parse_keys
from topics.model.errors import InvalidConfig

READ_WRITE = Scope.READ | Scope.WRITE


def found(text: str, token: bytes) -> auth.Key:
    key = parse_keys(text).find(token)
    assert key is not None
    return key


@pytest.mark.parametrize("text", ["", "  ", ",", " , ,"])
def test_without_entries_authentication_is_off(text: str) -> None:
    keyring = parse_keys(text)
    assert not keyring.on
    assert keyring.find(b"") is None


@pytest.mark.parametrize(
    ("entry", "scopes"),
    [
        ("s", ALL_SCOPES),
        ("s:", ALL_SCOPES),
        ("s: + ", ALL_SCOPES),
        ("s::p", ALL_SCOPES),
        ("s:r", Scope.READ),
        ("s:read", Scope.READ),
        ("s:w", Scope.WRITE),
        ("s:d", Scope.DELETE),
        ("s:del", Scope.DELETE),
        ("s:DELETE", Scope.DELETE),
        ("s:a", Scope.ADMIN),
        ("s:Admin", Scope.ADMIN),
        ("s:rw", READ_WRITE),
        ("s: Read + WRITE ", READ_WRITE),
        ("s:rw+d+a", ALL_SCOPES),
    ],
)
def test_scope_words_grant_what_the_contract_says(entry: str, scopes: Scope) -> None:
    assert found(entry, b"s").scopes == scopes


def test_unknown_scope_word_refuses_the_start_without_quoting_it() -> None:
    with pytest.raises(InvalidConfig, match="entry 2") as caught:
        parse_keys("a:r,hidden:part-of-a-secret")
    assert "hidden" not in str(caught.value)
    assert "part-of-a-secret" not in str(caught.value)
    assert "read" in str(caught.value)


def test_entries_are_trimmed_and_blank_ones_skipped() -> None:
    keyring = parse_keys(" a:r , ,b:w,")
    assert [key.scopes for key in keyring.keys] == [Scope.READ, Scope.WRITE]
    assert keyring.find(b"a") is not None
    assert keyring.find(b" a") is None


def test_last_entry_of_a_repeated_secret_counts() -> None:
    assert found("s:r,t:w,s:a:x", b"s").scopes == Scope.ADMIN
    assert len(parse_keys("s:r,t:w,s:a:x").keys) == 2


def test_empty_secret_matches_nobody_but_turns_authentication_on() -> None:
    keyring = parse_keys(":r")
    assert keyring.on
    assert keyring.find(b"") is None


def test_prefixes_may_hold_colons_and_match_by_bytes() -> None:
    key = found("s:rw:a:b.| c. ||", b"s")
    assert key.prefixes == (b"a:b.", b"c.")
    assert key.may_name("a:b.orders")
    assert key.may_name(b"c.x")
    assert not key.may_name("a:")
    assert not key.may_name("C.x")


def test_key_without_prefixes_may_touch_every_name() -> None:
    assert found("s", b"s").may_name("anything")
    assert ANYONE.may_name("anything")


def test_several_scopes_are_needed_together() -> None:
    key = found("s:r", b"s")
    assert key.may(Scope.READ)
    assert not key.may(READ_WRITE)
    assert ANYONE.may(ALL_SCOPES)


def test_every_key_is_compared_whatever_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    compare = hmac.compare_digest

    def counting(one: bytes, other: bytes) -> bool:
        nonlocal compared
        compared += 1
        return compare(one, other)

    keyring = parse_keys("a,b,c,d")
    monkeypatch.setattr(hmac, "compare_digest", counting)
    for token in (b"a", b"d", b"nobody"):
        compared = 0
        keyring.find(token)
        assert compared == 4


def test_no_secret_is_in_any_representation() -> None:
    keyring = parse_keys("very-secret:rw:orders.")
    for shown in (repr(keyring), str(keyring), repr(keyring.keys[0])):
        assert "very-secret" not in shown
    assert b"very-secret" not in pickle.dumps(keyring)


def test_secret_that_is_not_text_is_found_by_its_bytes() -> None:
    assert parse_keys(b"s\xff".decode("utf-8", "surrogateescape")).find(b"s\xff") is not None


@pytest.mark.parametrize(
    ("header", "token"),
    [
        (None, None),
        (b"", None),
        (b"Bearer", None),
        (b"Bearer ", None),
        (b"Bearer   t ", b"t"),
        (b"Bearer t", b"t"),
        (b"bearer t", None),
        (b"BEARER t", None),
        (b"Basic t", None),
        (b"Bearert", None),
    ],
)
def test_bearer_is_an_exact_word_and_its_token_is_trimmed(header: bytes | None, token: bytes | None) -> None:
    assert bearer(header) == token


def no_answer(host: str) -> list[str]:
    raise OSError(f"no address for {host}")


@pytest.mark.parametrize(
    ("host", "addresses", "loopback"),
    [
        ("127.0.0.1", [], True),
        ("127.8.9.1", [], True),
        ("::1", [], True),
        ("0.0.0.0", [], False),
        ("::", [], False),
        ("10.0.0.1", [], False),
        ("here", ["127.0.0.1", "::1"], True),
        ("here", ["127.0.0.1", "10.0.0.1"], False),
        ("here", [], False),
        ("", [], False),
    ],
)
def test_loopback_is_judged_by_every_address(host: str, addresses: list[str], loopback: bool) -> None:
    assert is_loopback(host, lambda _: addresses) is loopback


def test_host_that_does_not_resolve_is_not_loopback() -> None:
    assert not is_loopback("nowhere", no_answer)


def test_binding_beyond_loopback_needs_keys_or_an_explicit_word() -> None:
    off, on = parse_keys(""), parse_keys("s")
    check_bind("127.0.0.1", off, allow_insecure=False)
    check_bind("0.0.0.0", on, allow_insecure=False)
    check_bind("0.0.0.0", off, allow_insecure=True)
    with pytest.raises(InvalidConfig, match="TOPICS_API_KEYS"):
        check_bind("0.0.0.0", off, allow_insecure=False)
    with pytest.raises(InvalidConfig, match="TOPICS_ALLOW_INSECURE_NO_AUTH"):
        check_bind("nowhere", off, allow_insecure=False, resolve=no_answer)


def test_slots_are_counted_per_key_and_come_back() -> None:
    one, other = parse_keys("a,b").keys
    slots = Slots(2)
    assert [slots.take(one) for _ in range(3)] == [True, True, False]
    assert slots.take(other)
    slots.give(one)
    assert slots.held(one) == 1
    assert slots.take(one)
    for key in (one, one, other):
        slots.give(key)
    assert slots.held(one) == slots.held(other) == 0


def test_slots_without_limit_or_without_keys_are_not_counted() -> None:
    (key,) = parse_keys("a").keys
    endless, narrow = Slots(0), Slots(1)
    assert all(endless.take(key) for _ in range(5))
    assert all(narrow.take(ANYONE) for _ in range(5))
    endless.give(key)
    narrow.give(ANYONE)
    assert endless.held(key) == 0
