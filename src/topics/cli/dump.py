"""`topics dump`: print what a file of the data directory holds, whole or damaged.

Reads only. It goes frame by frame, holds none of them, and where it stops it says at which byte and why; a damaged file
is an answer here, not an error of the command.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from cyclopts import Parameter

from topics.cli.dumping import Kind, Parts, Stop, kind_of, parts_of
from topics.cli.exits import DAMAGED, WrongUsage
from topics.cli.output import Output, shown
from topics.host.fs import OsFs
from topics.model.errors import InvalidRequest

EXAMPLES: Final = """Examples:

    topics dump topics-data/wal/shard-00/wal-0000000000000001.log
    topics dump topics-data/wal/shard-00/wal-0000000000000001.log --past-damage --json
    topics dump topics-data/topics/00000001/MANIFEST
    topics dump topics-data/topics/00000001/seg-0000000000000001.data --offset 4096 --limit 10
    topics dump topics-data/meta/snapshot-0000000000000003.bin
"""


def dump(
    path: str,
    *,
    kind: Kind | None = None,
    offset: int = 0,
    limit: int = 1000,
    full: Annotated[bool, Parameter(negative=())] = False,
    past_damage: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Print a WAL file, a segment, a manifest, a snapshot or CURRENT. Exit status 4 if it is damaged.

    Parameters
    ----------
    path
        The file.
    kind
        What it is, where its name does not tell.
    offset
        Byte to begin at; a frame must begin there.
    limit
        At most this many entries; 0 = all.
    full
        Payloads whole, not just their beginning.
    past_damage
        After damage go on at the next whole frame.
    json
        Print JSON, one object a line; the last says where and why it ended.
    """
    fs = OsFs()
    if fs.is_dir(path):
        raise InvalidRequest(f"{path} is a directory; name a file in it, such as one of wal/shard-00/ or topics/<id>/")
    try:
        file = fs.open(path)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from error
    what: Kind = kind or kind_of(path)
    size = file.size()
    if not 0 <= offset <= size:
        raise WrongUsage(f"--offset is {offset}; the file has {size} bytes")
    view = file.map() if size else memoryview(b"")
    output = Output(json=json)
    output.note(f"{path}: {what}, {size} bytes")
    return _print(output, bounded(parts_of(what, view, offset, full=full, past_damage=past_damage), limit))


def bounded(parts: Parts, limit: int) -> Parts:
    """At most `limit` entries, and a Stop in any case."""
    count = 0
    for part in parts:
        if not isinstance(part, Stop) and limit and count == limit:
            yield Stop(part.get("offset", 0), "limit", f"{limit} entries were printed; --limit 0 prints all")
            return
        count += not isinstance(part, Stop)
        yield part


def _print(output: Output, parts: Parts) -> int:
    damaged = False
    for part in parts:
        if isinstance(part, Stop):
            damaged |= part.reason == "damage"
            output.line({"stop": {"offset": part.offset, "reason": part.reason, "why": part.why}}, part.text)
        else:
            output.line(part, "  ".join(_column(name, value) for name, value in part.items() if value is not None))
    return DAMAGED if damaged else 0


def _column(name: str, value: Any) -> str:
    if name == "offset":
        return f"{value:>10}"
    return str(value) if name == "what" else f"{name}={shown(value)}"
