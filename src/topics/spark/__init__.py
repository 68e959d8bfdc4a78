"""Spark reads topics: `spark.read.format("topics")`, and a session that is set up for it.

    import topics.spark

    spark = topics.spark.session()
    orders = spark.read.format("topics").option("url", "http://127.0.0.1:4000").option("topic", "orders").load()

Importing this package does not need Spark; `session` says how to get it where it is missing.
"""

from __future__ import annotations

from topics.spark.session import session
from topics.spark.table import table

__all__ = ["session", "table"]
