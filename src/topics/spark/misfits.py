"""Payloads that surely do not fit a schema, found one by one without Arrow.

Arrow's JSON reader gives up a whole block for one value that does not fit, and to start it anew costs as much as
reading hundreds of texts. So where a block has misfits, those with a value of another type are found here and set to
null, and Arrow reads the rest in one go. Only Arrow says what fits; what is said here, it would say too.
"""

from __future__ import annotations

import functools
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

_OTHER_TYPE: Final = "Expected `"
"""How msgspec begins when a value has another type or is out of bounds. What else it dislikes, Arrow may take."""


def without_misfits(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """The texts, with null in place of those that are surely no value of `kind`."""
    decoder = _decoder(kind)
    bad = pa.array([_is_misfit(decoder, text) for text in texts.to_pylist()], pa.bool_())
    return pc.if_else(bad, pa.scalar(None, texts.type), texts)


def _is_misfit(decoder: msgspec.json.Decoder[Any], text: str | None) -> bool:
    if text is None:
        return False
    try:
        decoder.decode(text)
    except msgspec.ValidationError as error:
        return str(error).startswith(_OTHER_TYPE)
    except msgspec.DecodeError:
        return False
    return False


@functools.lru_cache(maxsize=64)
def _decoder(kind: pa.DataType) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_type(kind))


def _type(kind: pa.DataType) -> Any:
    """What a JSON value must be at least, as msgspec's word for it; null is a value of every kind."""
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        if len(set(names)) < len(names):
            return Any
        fields = [(f"f{at}", _type(field.type), None) for at, field in enumerate(kind)]
        return msgspec.defstruct("Payload", fields, rename={f"f{at}": name for at, name in enumerate(names)}) | None
    if pa.types.is_list(kind):
        return list[_type(kind.value_type)] | None  # type: ignore[misc]
    if pa.types.is_signed_integer(kind):
        most = (1 << kind.bit_width - 1) - 1
        return Annotated[int, msgspec.Meta(ge=-most - 1, le=most)] | None
    if pa.types.is_boolean(kind):
        return bool | None
    if pa.types.is_floating(kind):
        return float | None
    if pa.types.is_string(kind) or pa.types.is_timestamp(kind):
        return str | None
    return Any
