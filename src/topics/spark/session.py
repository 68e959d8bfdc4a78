"""A Spark session with the right Python, Java, socket and Arrow settings."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from topics.host.fs import OsFs, read_file
from topics.model.errors import InvalidConfig
from topics.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER: Final = "local[*]"
_SPARK_MIN: Final = (4, 2)
_MASTER: Final = re.compile(r"local(-cluster)?(\[.*\])?|yarn|(spark|k8s)://.+")

_DEFAULT_JAVA: Final = re.compile(r"^[ \t]*(spark\.(?:driver|executor)\.defaultJavaOptions)[\s=:]", re.MULTILINE)
_ARROW: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"

SETTINGS: Final[Mapping[str, str]] = {
    # A Python task costs about half of what it costs over TCP.
    "spark.python.unix.domain.socket.enabled": "true",
    # Of what goes between a task and its Python: with Spark's 64 KiB a scan makes four times the calls of the kernel.
    "spark.buffer.size": "262144",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Spark takes what a worker sends value by value, and checking the bounds of each is a sixth of a scan's CPU time.
    # Options of the caller's come behind these and win.
    "spark.driver.defaultJavaOptions": _ARROW,
    "spark.executor.defaultJavaOptions": _ARROW,
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
"""What every session of ours has unless the caller says otherwise."""

LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    # Nobody else has to reach a driver whose executors are in it.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def session(
    app_name: str = "topics",
    master: str | None = None,
    *,
    conf: Mapping[str, str] | None = None,
    python: str | None = None,
) -> SparkSession:
    """A session that reads `format("topics")`: on this machine's cores, or on any `master`.

    `conf` overrides any setting. `python` is the interpreter of the workers: this one unless it or PYSPARK_PYTHON says
    otherwise; on a cluster it must exist on every machine and have `topics` installed. A session that is running
    already is returned as it is, since Java and Python cannot change any more; and it is active in this thread then,
    which is where Spark looks for sources.
    """
    check_spark()
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException, PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return activate(SparkSession.active())
    except PySparkRuntimeError:
        pass  # none yet
    master = master or LOCAL_MASTER
    check_master(master)
    worker = python or os.environ.get("PYSPARK_PYTHON") or sys.executable
    if worker != sys.executable and master.startswith("local"):
        check_worker(worker)
    java = find_java(os.environ)
    if java.home is not None:
        os.environ["JAVA_HOME"] = java.home
    os.environ["PYSPARK_PYTHON"] = worker
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    kept = _administered(os.environ)
    ours = {name: value for name, value in SETTINGS.items() if name not in kept}
    settings = {**ours, **(LOCAL_SETTINGS if master.startswith("local") else {}), **(conf or {})}
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        said = next((line for line in str(error).splitlines() if "Exception: " in line), str(error).partition("\n")[0])
        raise InvalidConfig(
            f"Spark did not start with master {master!r} ({said.strip()}): what it said before this tells more"
        ) from None


def _administered(environ: Mapping[str, str]) -> frozenset[str]:
    """Default options of Java that this Spark's own file has: ours would come in their place, and they may be what a
    cluster cannot do without."""
    import pyspark

    home = environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)
    path = os.path.join(environ.get("SPARK_CONF_DIR") or os.path.join(home, "conf"), "spark-defaults.conf")
    try:
        text = read_file(OsFs(), path).decode("utf-8", "replace")
    except OSError:
        return frozenset()
    return frozenset(_DEFAULT_JAVA.findall(text))


def check_master(master: str) -> None:
    """InvalidConfig unless it is one that Spark knows. Java would say so too, in forty lines."""
    if _MASTER.fullmatch(master) is None:
        hint = "; a Connect server is for SparkSession.builder.remote(…)" if master.startswith("sc://") else ""
        raise InvalidConfig(
            f"{master!r} is no Spark master: write local[*], spark://host:7077, yarn or k8s://…{hint}", master=master
        )


def activate(spark: SparkSession) -> SparkSession:
    """Make the session active in this thread: elsewhere than in the thread that made it Spark knows no sources but its
    own. Making a frame is the one public call that does so."""
    if type(spark).getActiveSession() is None:
        spark.createDataFrame([], "seq bigint")
    return spark


def is_running(spark: SparkSession) -> bool:
    """Whether its Java is there and its context works: either may end by itself, a context with its cluster."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        java = spark.sparkContext._jsc
        return java is not None and not java.sc().isStopped()
    except (PySparkException, Py4JError, OSError):
        return False


def stop(spark: SparkSession) -> None:
    """End it, also where its Java is gone: then Spark's own `stop` fails half way, and would leave the next session to
    talk to nobody."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    alive = is_running(spark)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that Java is gone
            spark.stop()
    except (PySparkException, Py4JError, OSError):
        alive = False
    if not alive:
        with SparkContext._lock:
            SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None


def check_spark(*, lake: bool = False) -> None:
    """InvalidConfig unless a Spark that we can work with is installed; with `lake` also what writes tables."""
    remedy = f"pip install 'topics[spark{',lake' if lake else ''}]'"
    wanted = ("pyspark", "pyarrow", "pandas", *(("deltalake",) if lake else ()))
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidConfig(f"{' and '.join(missing)} not found in {sys.executable}: {remedy}", missing=missing)
    import pyspark

    version = tuple(int(part) for part in pyspark.__version__.split(".")[:2] if part.isdigit())
    if version < _SPARK_MIN:
        least = ".".join(map(str, _SPARK_MIN))
        raise InvalidConfig(f"pyspark {pyspark.__version__} is older than {least}: {remedy}", found=pyspark.__version__)


def check_worker(python: str) -> None:
    """InvalidConfig unless the interpreter of the workers is of our version and has our package."""
    script = "import sys, pyspark_topics; print(*sys.version_info[:2])"
    remedy = "unset PYSPARK_PYTHON, or install topics[spark] there"
    try:
        done = subprocess.run([python, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InvalidConfig(f"the worker Python {python!r} does not run ({error}): {remedy}", python=python) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise InvalidConfig(f"the worker Python {python!r} cannot read topics ({last}): {remedy}", python=python)
    ours = list(map(str, sys.version_info[:2]))
    if done.stdout.split() != ours:
        theirs = ".".join(done.stdout.split())
        raise InvalidConfig(
            f"the worker Python {python!r} is {theirs} and this one is {'.'.join(ours)}; Spark wants one: {remedy}",
            python=python,
        )
