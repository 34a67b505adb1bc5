"""Messages and facts as a Parquet file, with the columns of ``rows``; needs pyarrow."""

from __future__ import annotations

from typing import TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from memctl.dialects.view import Dialect
from memctl.model import Page
from memctl.ops.export.rows import Kind, columns, rows
from memctl.ops.export.writer import PageWriter

_GROUP_BYTES = 16 * 1024 * 1024
_GROUP_ROWS = 100_000
"""The limits of a row group in bytes and rows; a group is in RAM until it is written."""

_TYPES = {
    Kind.WORD: pa.string(),
    Kind.TEXT: pa.string(),
    Kind.NUMBER: pa.int64(),
    Kind.MOMENT: pa.timestamp("us", tz="UTC"),
    Kind.LIST: pa.list_(pa.string()),
    Kind.STORED: pa.string(),
}


class ParquetFile(PageWriter):
    """A table of messages or facts as a Parquet file, compressed with zstd."""

    def __init__(self, file: TextIO, dialect: Dialect) -> None:
        super().__init__(file, dialect)
        found = columns(dialect)
        self._schema = pa.schema([pa.field(one.name, _TYPES[one.kind]) for one in found])
        self._held: list[pa.RecordBatch] = []
        self._bytes = self._rows = 0
        repeating = [one.name for one in found if one.kind is Kind.WORD]
        compared = [one.name for one in found if one.kind is not Kind.STORED]
        self._writer = pq.ParquetWriter(
            file.buffer,
            self._schema,
            compression="zstd",
            use_dictionary=repeating,
            write_statistics=compared,
        )

    def add(self, page: Page) -> None:
        if not page.messages:
            return
        values = list(zip(*rows(page, self._dialect), strict=True))
        arrays = [
            pa.array(column, field.type) for column, field in zip(values, self._schema, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._held.append(batch)
        self._bytes += batch.nbytes
        self._rows += batch.num_rows
        if self._bytes >= _GROUP_BYTES or self._rows >= _GROUP_ROWS:
            self._write_group()

    def _write_group(self) -> None:
        table = pa.Table.from_batches(self._held, self._schema)
        self._held.clear()
        self._writer.write_table(table, row_group_size=max(1, self._rows))
        self._bytes = self._rows = 0

    def finish(self) -> None:
        if self._rows:
            self._write_group()
        self._writer.close()

    def discard(self) -> None:
        self._held.clear()
        self._writer.is_open = False  # prevents a late write into the closed file
