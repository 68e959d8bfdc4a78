"""Operations that an operator asks for."""

from __future__ import annotations

import msgspec

from topics.api.call import Call
from topics.api.http import Response
from topics.api.service import Service


class Checkpointed(msgspec.Struct):
    done: bool
    """False: a part failed and will be tried again."""


async def checkpoint(service: Service, call: Call) -> Response:
    """Copy the WAL into segments and write a snapshot, now."""
    done = await service.loop.run_in_executor(service.readers, service.pump.checkpoint)
    return call.answer(Checkpointed(done), service.now_ns())
