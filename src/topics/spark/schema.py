"""The columns a reader gives, and which of them a query asked for.

Spark does not tell a source which columns a query uses. A schema given to the reader does: any subset, in any order,
and `data` or `meta` as a struct or an array, which parses their JSON. Only what it names is decoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from topics.format.decode import COLUMN_DATA, COLUMN_KEY, COLUMN_META, COLUMN_NODE, COLUMN_TAG, COLUMN_TS
from topics.model.errors import InvalidRequest
from topics.spark.options import Options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

COLUMNS: Final = {
    "topic": "string", "seq": "bigint", "ts": "timestamp", "tag": "string", "node": "string", "key": "string",
    "data": "string", "meta": "string",
}  # fmt: skip
GAP_COLUMNS: Final = {"kind": "string", "gap_from": "bigint", "gap_to": "bigint", "reason": "string"}
KAFKA_COLUMNS: Final = {
    "key": "binary", "value": "binary", "topic": "string", "partition": "int", "offset": "bigint",
    "timestamp": "timestamp", "timestampType": "int",
}  # fmt: skip

_PARSED: Final = frozenset({"data", "meta"})
_ALWAYS: Final = frozenset({"topic", "seq", "ts", "data", "value", "partition", "offset", "timestamp", "timestampType"})
"""What every record has. Spark asks each value of a column whether it is null unless it knows that none is."""
_WANT: Final = {
    "tag": COLUMN_TAG, "node": COLUMN_NODE, "key": COLUMN_KEY, "data": COLUMN_DATA, "value": COLUMN_DATA,
    "meta": COLUMN_META, "ts": COLUMN_TS, "timestamp": COLUMN_TS,
}  # fmt: skip


@dataclass(frozen=True)
class Projection:
    """What comes out: the names, in order, and the Arrow schema that Spark expects for them."""

    names: tuple[str, ...]
    schema: pa.Schema
    want: int
    """Bits of `decode_columns`."""
    kafka: bool
    fail_bad_json: bool


def columns_of(options: Options) -> dict[str, str]:
    """The columns without a schema of the caller's, as name: type."""
    plain = KAFKA_COLUMNS if options.kafka else COLUMNS
    if options.shows_gaps:
        return {**plain, **GAP_COLUMNS}  # the row of a gap has no seq and no data
    return {name: f"{kind} not null" if name in _ALWAYS else kind for name, kind in plain.items()}


def make_projection(options: Options, schema: StructType) -> Projection:
    """InvalidRequest if the schema names what cannot be had."""
    from pyspark.sql.pandas.types import to_arrow_schema

    known = {**(KAFKA_COLUMNS if options.kafka else COLUMNS), **GAP_COLUMNS}
    want = 0
    for field in schema.fields:
        if field.name not in known:
            hint = "" if options.kafka or field.name not in KAFKA_COLUMNS else " (compat=kafka has Kafka's names)"
            raise InvalidRequest(f"the schema asks for column {field.name!r}; there are: {', '.join(known)}{hint}")
        _check_type(field.name, field.dataType, known[field.name])
        if not field.nullable:
            _check_not_null(field.name, field.dataType, known[field.name], options)
        want |= _WANT.get(field.name, 0)
    names = tuple(field.name for field in schema.fields)
    if len(set(names)) != len(names):
        raise InvalidRequest("the schema names a column twice")
    missing = [name for name in ("kind", "gap_from", "gap_to") if options.shows_gaps and name not in names]
    if missing:
        asked = "gapPolicy=emit" if options.gap_policy == "emit" else "onCorrupt=report"
        raise InvalidRequest(f"with {asked} the schema needs the columns {', '.join(missing)} too: gaps are rows")
    arrow = to_arrow_schema(schema, timezone="UTC")
    return Projection(names, arrow, want, options.kafka, options.fail_bad_json)


def _check_type(name: str, given: Any, expected: str) -> None:
    said = given.simpleString()
    if said == expected:
        return
    if name in _PARSED and said == "variant":
        raise InvalidRequest(f"column {name!r} cannot be a variant: read it as string and use parse_json({name})")
    if name in _PARSED and given.typeName() in ("struct", "array"):
        _check_parsed(name, given)
        return
    also = ", a struct or an array" if name in _PARSED else ""
    raise InvalidRequest(f"the schema asks for column {name!r} as {said}; it can be had as {expected}{also}")


def _check_not_null(name: str, given: Any, expected: str, options: Options) -> None:
    """Spark would take a null for an empty text or a zero, without a word."""
    if name in _ALWAYS and given.simpleString() == expected and not options.shows_gaps:
        return
    why = "the row of a gap has none" if name in _ALWAYS and options.shows_gaps else "not every record has one"
    raise InvalidRequest(f"the schema asks for column {name!r} as not null, and {why}: leave NOT NULL out")


def _check_parsed(name: str, given: Any) -> None:
    """JSON becomes strings, numbers, booleans, times, and structs and arrays of those."""
    kind = given.typeName()
    if kind == "struct":
        for field in given.fields:
            if not field.nullable:
                raise InvalidRequest(
                    f"the schema asks for {name}.{field.name} as not null, and JSON may leave it out: "
                    "leave NOT NULL out"
                )
            _check_parsed(f"{name}.{field.name}", field.dataType)
    elif kind == "array":
        _check_parsed(f"{name}[]", given.elementType)
    elif kind not in ("string", "boolean", "byte", "short", "integer", "long", "float", "double", "timestamp"):
        raise InvalidRequest(
            f"the schema asks for {name} as {given.simpleString()}: JSON gives string, boolean, tinyint to bigint, "
            "float, double, timestamp, struct and array"
        )
