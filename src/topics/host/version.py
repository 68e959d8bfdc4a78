"""Which version of the package is installed here."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str:
    try:
        return version("topics")
    except PackageNotFoundError:
        return "unknown"
