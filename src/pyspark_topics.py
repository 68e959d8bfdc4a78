"""Found by Spark by its name: with this module installed, `format("topics")` works. Spark imports it at every first
look-up of any format, so everything heavy is imported when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "topics"

    def schema(self) -> str:
        from topics.spark.settling import settle
        from topics.spark.source import default_schema

        settle()
        return default_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from topics.spark.settling import settle
        from topics.spark.source import batch_reader

        settle()
        return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from topics.model.errors import TopicsError
        from topics.spark.stream import RefusedReader, stream_reader

        try:
            return stream_reader(self.options, schema)
        except TopicsError as error:  # Spark would stop the reader that it does not have, and tell of that
            return RefusedReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from topics.spark.settling import settle
        from topics.spark.sink import batch_writer

        settle()
        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from topics.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)
