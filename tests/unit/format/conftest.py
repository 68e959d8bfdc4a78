"""Every batch function is tested twice: the Python reference and the compiled kernel."""

from __future__ import annotations

import warnings
from types import ModuleType

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore", RuntimeWarning)
    from topics.format import ops as chosen


@pytest.fixture(
    params=[
        pytest.param(chosen.reference, id="reference"),
        pytest.param(
            chosen.kernel,
            id="kernel",
            marks=pytest.mark.skipif(not chosen.KERNEL, reason="the kernel was not built here"),
        ),
    ],
    scope="session",
)
def ops(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module
