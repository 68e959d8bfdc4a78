"""Tests of the transport are coroutines: each runs on a uvloop of its own and must end within a few seconds."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
import uvloop

TIME_MAX_S = 90.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}
    uvloop.run(asyncio.wait_for(pyfuncitem.obj(**arguments), TIME_MAX_S))
    return True
