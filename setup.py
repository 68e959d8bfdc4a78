"""Builds the optional kernel, and a few loops and calls of the system. All else about the package is in pyproject.toml.

Both need a C compiler, the kernel also the one-file library `xxhash.h`. Without either the build goes on, says so once,
and the package runs on the Python twins of the same functions.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FORMAT = Path("src/topics/format")
HOST = Path("src/topics/host")


def warn_without_kernel(why: object) -> None:
    print(f"WARNING: topics is built without its compiled kernel ({why}); batches will be 20 to 150 times slower.")


def header_folders() -> list[Path]:
    """Where `xxhash.h` may lie: the include folder of the pyarrow wheel first, then the system's."""
    spec = importlib.util.find_spec("pyarrow")
    packages = (spec.submodule_search_locations or []) if spec else []
    folders = [Path(package) / "include" / "arrow" / "vendored" / "xxhash" for package in packages]
    folders += [Path("/usr/include"), Path("/usr/local/include"), Path("/opt/homebrew/include")]
    return [folder for folder in folders if (folder / "xxhash.h").is_file()]


class OptionalBuild(build_ext):
    """A compiler that is missing or fails costs speed, never the installation."""

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception as error:
            warn_without_kernel(f"the C compiler is missing or failed: {type(error).__name__}")


def kernel() -> list[Extension]:
    if sys.byteorder != "little":
        warn_without_kernel("it reads little-endian files in place, and this machine is big-endian")
        return []
    folders = header_folders()
    if not folders:
        warn_without_kernel("xxhash.h was found neither in pyarrow nor in the system")
        return []
    return [
        Extension(
            "topics.format.kernel",
            [str(FORMAT / "kernel.pyx")],
            depends=[str(path) for pattern in ("kernel_*.pxi", "*.h") for path in sorted(FORMAT.glob(pattern))],
            include_dirs=[str(folders[0]), str(FORMAT)],
            define_macros=[("XXH_INLINE_ALL", None)],
            extra_compile_args=[] if sys.platform == "win32" else ["-O3"],
        )
    ]


def loops() -> list[Extension]:
    if sys.platform == "win32":
        return []
    return [
        Extension(
            f"topics.host.{name}", [str(HOST / f"{name}.pyx")], depends=[str(HOST / header)], include_dirs=[str(HOST)]
        )
        for name, header in (
            ("sockets_fast", "send_each.h"),
            ("making_fast", "make_files.h"),
            ("writing_back_fast", "write_back.h"),
        )
    ]


def extensions() -> list[Extension]:
    wanted = kernel() + loops()
    try:
        from Cython.Build import cythonize
    except ImportError as error:
        warn_without_kernel(error)
        return []
    built: list[Extension] = cythonize(wanted, language_level=3, quiet=True)
    for extension in built:
        extension.optional = True  # set here, because cythonize does not carry it over
    return built


setup(ext_modules=extensions(), cmdclass={"build_ext": OptionalBuild})
