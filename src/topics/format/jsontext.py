"""Strict JSON (RFC 8259) as text: checked, stripped of insignificant whitespace, otherwise left byte for byte.

Number spelling, key order and escapes are the client's and stay. Refused, beyond bad grammar: bytes that are not
UTF-8, escapes of half a surrogate pair, control characters in strings, anything after the value, and nesting deeper
than `depth_max` (a scalar has depth 0, `[]` depth 1). Repeated keys are let through, as RFC 8259 does.

The scanner keeps one bit per open bracket and never recurses, so hostile text costs time in proportion to its length.
"""

from __future__ import annotations

import re
from typing import Final

DEPTH_LIMIT: Final = 1024
"""The largest `depth_max`: the kernel keeps its bracket stack in so many bits."""

NAMES_MAX: Final = 32
"""The most names `compact_body` looks for: the kernel keeps one bit for each."""

NOT_UTF8: Final = "it is not UTF-8"
ENDS_EARLY: Final = "the text ends early"
UNEXPECTED: Final = "unexpected byte"
BAD_NUMBER: Final = "bad number"
NOT_CLOSED: Final = "a string is not closed"
CONTROL: Final = "control character in a string"
BAD_ESCAPE: Final = "bad escape or half of a surrogate pair"
TOO_DEEP: Final = "nested too deep"
TRAILING: Final = "text after the value"

WHYS: Final = (NOT_UTF8, ENDS_EARLY, UNEXPECTED, BAD_NUMBER, NOT_CLOSED, CONTROL, BAD_ESCAPE, TOO_DEEP, TRAILING)
"""By number, as the kernel reports them."""

_SPACE: Final = re.compile(rb"[ \t\n\r]*+")
_HEX: Final = rb"[0-9a-fA-F]"
_ESCAPE: Final = rb'\\(?:["\\/bfnrt]|u(?:[0-9a-ce-fA-CE-F]HHH|[dD][0-7]HH|[dD][89abAB]HH\\u[dD][c-fC-F]HH))'.replace(
    b"H", _HEX
)
_CHARACTERS: Final = rb'[^"\\\x00-\x1f]*+(?:' + _ESCAPE + rb'[^"\\\x00-\x1f]*+)*+'
_DIGITS: Final = rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+"
_WORDS: Final = rb"true|false|null"
_STRING_BODY: Final = re.compile(_CHARACTERS)
_NUMBER: Final = re.compile(_DIGITS)
_LITERAL: Final = re.compile(_WORDS)

# Runs of compact scalars inside a container, each with its comma, are taken in one match: most of most texts.
_SCALAR: Final = rb'(?:"' + _CHARACTERS + rb'"|' + _DIGITS + rb"|" + _WORDS + rb")"
_ELEMENTS: Final = re.compile(rb"(?:" + _SCALAR + rb",)*+")
_MEMBERS: Final = re.compile(rb'(?:"' + _CHARACTERS + rb'":' + _SCALAR + rb",)*+")

# What may come next.
_VALUE, _VALUE_OR_CLOSE, _KEY, _KEY_OR_CLOSE, _COLON, _COMMA_OR_CLOSE = range(6)


class BadJson(ValueError):
    """The text is not JSON we take; `position` is a byte offset."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(f"{why} at byte {position}")
        self.position = position
        self.why = why


def compact_json(text: bytes, depth_max: int) -> bytes:
    """`text` without insignificant whitespace; the same object if there is none. BadJson if it is not strict JSON."""
    return scan_json(text, depth_max, False)[0]


def scan_json(text: bytes, depth_max: int, count_keys: bool) -> tuple[bytes, int]:
    """The compact text and, if wanted, the number of keys of the outermost object (0 for anything else)."""
    if not 0 <= depth_max <= DEPTH_LIMIT:
        raise ValueError(f"depth_max is {depth_max}; it must lie in 0..{DEPTH_LIMIT}")
    if type(text) is not bytes:
        text = bytes(text)
    if not text.isascii():
        try:
            text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadJson(error.start, NOT_UTF8) from None
    pieces: list[bytes] = []
    kept_from = 0
    objects = [False] * (depth_max + 1)
    depth = 0
    keys = 0
    expect = _VALUE
    at = 0
    size = len(text)
    while True:
        space_end = _match_end(_SPACE, text, at)
        if space_end != at:
            pieces.append(text[kept_from:at])
            kept_from = at = space_end
        if expect in (_KEY, _KEY_OR_CLOSE) and not (count_keys and depth == 1):
            run_end, after_run = _match_end(_MEMBERS, text, at), _KEY
        elif expect in (_VALUE, _VALUE_OR_CLOSE) and depth and not objects[depth]:
            run_end, after_run = _match_end(_ELEMENTS, text, at), _VALUE
        else:
            run_end = at
        if run_end != at:
            at, expect = run_end, after_run
            continue
        if at == size:
            raise BadJson(at, ENDS_EARLY)
        byte = text[at]
        closes = False
        if expect == _COLON:
            if byte != 0x3A:
                raise BadJson(at, UNEXPECTED)
            at += 1
            expect = _VALUE
            continue
        if expect == _COMMA_OR_CLOSE and byte == 0x2C:
            at += 1
            expect = _KEY if objects[depth] else _VALUE
            continue
        if expect in (_KEY, _KEY_OR_CLOSE) and byte == 0x22:
            at = _string_end(text, at)
            keys += depth == 1  # at depth 1 only the outermost object has keys
            expect = _COLON
            continue
        if expect in (_COMMA_OR_CLOSE, _KEY_OR_CLOSE, _VALUE_OR_CLOSE):
            closes = byte == (0x7D if objects[depth] else 0x5D)
        if closes:
            depth -= 1
            at += 1
        elif expect not in (_VALUE, _VALUE_OR_CLOSE):
            raise BadJson(at, UNEXPECTED)
        elif byte in b"[{":
            if depth == depth_max:
                raise BadJson(at, TOO_DEEP)
            depth += 1
            objects[depth] = byte == 0x7B
            expect = _KEY_OR_CLOSE if byte == 0x7B else _VALUE_OR_CLOSE
            at += 1
            continue
        else:
            at = _scalar_end(text, at, byte)
        if depth:
            expect = _COMMA_OR_CLOSE
            continue
        end = _match_end(_SPACE, text, at)
        if end != size:
            raise BadJson(end, TRAILING)
        if kept_from == 0 and end == at:
            return text, keys
        pieces.append(text[kept_from:at])
        return b"".join(pieces), keys


_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[{}\[\],]')


def compact_body(text: bytes, depth_max: int, names: tuple[bytes, ...]) -> tuple[bytes, bool]:
    """The compact text, and whether to look closer: in an object at depth 1 or 3 (a body, a record in its list) one of
    `names` came twice, or a name is written with escapes, so that it may be any."""
    if len(names) > NAMES_MAX:
        raise ValueError(f"{len(names)} names are more than {NAMES_MAX}")
    compact = compact_json(text, depth_max)
    return compact, _is_doubtful(compact, names)


def _is_doubtful(compact: bytes, names: tuple[bytes, ...]) -> bool:
    open_objects: list[set[bytes] | None] = []
    name_next = False
    for match in _TOKEN.finditer(compact):
        token = match.group()
        if token == b"{":
            open_objects.append(set())
            name_next = True
        elif token == b"[":
            open_objects.append(None)
            name_next = False
        elif token in (b"}", b"]"):
            open_objects.pop()
            name_next = False
        elif token == b",":
            name_next = open_objects[-1] is not None
        elif name_next:
            name_next = False
            seen = open_objects[-1]
            if seen is None or len(open_objects) not in (1, 3):
                continue
            name = token[1:-1]
            if b"\\" in name or (name in seen and name in names):
                return True
            seen.add(name)
    return False


def _match_end(pattern: re.Pattern[bytes], text: bytes, at: int) -> int:
    match = pattern.match(text, at)
    return at if match is None else match.end()


def _scalar_end(text: bytes, at: int, byte: int) -> int:
    if byte == 0x22:
        return _string_end(text, at)
    if byte == 0x2D or 0x30 <= byte <= 0x39:
        end = _match_end(_NUMBER, text, at)
        if end == at:
            raise BadJson(at, BAD_NUMBER)
        return end
    end = _match_end(_LITERAL, text, at)
    if end == at:
        raise BadJson(at, UNEXPECTED)
    return end


def _string_end(text: bytes, at: int) -> int:
    end = _match_end(_STRING_BODY, text, at + 1)
    if end == len(text):
        raise BadJson(at, NOT_CLOSED)
    byte = text[end]
    if byte == 0x22:
        return end + 1
    raise BadJson(end, BAD_ESCAPE if byte == 0x5C else CONTROL)
