"""A small Tablestore on loopback: the part of the wire protocol that AgentScope and memctl use.

The service has no emulator.  This server uses the SDK's own protobuf messages and PlainBuffer, the
format of rows.  The server follows the documentation of the service: keys and signatures,
conditions on rows, the limits of requests and columns, error answers.  So tests prove that the
clients speak the protocol and treat the documented answers correctly.  Tests do not prove how the
real service behaves.
"""

from __future__ import annotations

import asyncio
import base64
import bisect
import hashlib
import itertools
import json
import logging
import re
import struct
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

# The SDK warns that a part of it is not compiled for this Python.
logging.getLogger("tablestore").addHandler(logging.NullHandler())

import tablestore  # noqa: E402
import tablestore.protobuf.search_pb2 as search  # noqa: E402
import tablestore.protobuf.table_store_filter_pb2 as filters  # noqa: E402
import tablestore.protobuf.table_store_pb2 as pb  # noqa: E402
from tablestore.auth import RequestContext, SignV2  # noqa: E402
from tablestore.credentials import Credentials  # noqa: E402
from tablestore.plainbuffer.plain_buffer_crc8 import CRC8_TABLE, PlainBufferCrc8  # noqa: E402

KEY_ID = "memctl-key"
SECRET = "pa:ss/w@rd%21"

MOST_KEY_BYTES = 1024
MOST_COLUMN_BYTES = 2 * 1024 * 1024
MOST_BODY_BYTES = 4 * 1024 * 1024
MOST_RANGE_ROWS = 5000
MOST_READ_ROWS = 100
MOST_WRITTEN_ROWS = 200
MOST_HITS = 1000

_HEADER = 0x75
_ROW_KEY, _ROW_DATA, _CELL, _NAME, _VALUE, _TYPE, _TIME, _GONE, _ROW_SUM, _CELL_SUM = range(1, 11)
_INTEGER, _DOUBLE, _BOOLEAN, _STRING, _BLOB = 0, 1, 2, 3, 7
_LEAST, _GREATEST = 9, 10

Value = Any
Key = tuple[Value, ...]


class Refusal(Exception):
    """An error answer of the service."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def _condition_failed() -> Refusal:
    return Refusal(403, "OTSConditionCheckFail", "Condition check failed.")


@dataclass(frozen=True)
class Cell:
    """A column of a row: its bytes up to the value, with the checksum of the client."""

    value: Value
    raw: bytes
    sum: int
    time: int = 0

    def encoded(self) -> tuple[bytes, int]:
        """Return the cell with its time in the format of the protocol, and the checksum."""
        stamp = struct.pack("<q", self.time)
        sum = PlainBufferCrc8.crc_bytes(self.sum, stamp)
        return b"%b%c%b%c%c" % (self.raw, _TIME, stamp, _CELL_SUM, sum), sum


@dataclass
class Table:
    """A table: the schema, and the rows by primary key."""

    meta: Any
    rows: dict[Key, dict[str, Cell]] = field(default_factory=dict)
    raw_keys: dict[Key, bytes] = field(default_factory=dict)
    indexes: list[Any] = field(default_factory=list)
    searches: dict[str, Any] = field(default_factory=dict)
    seen: dict[Key, dict[str, Cell]] | None = None
    """The rows in the search index, if the index lags behind the table."""

    @property
    def names(self) -> list[str]:
        return [one.name for one in self.meta.primary_key]


@dataclass
class Instance:
    """An instance: the tables, and the next errors to answer."""

    tables: dict[str, Table] = field(default_factory=dict)
    faults: list[tuple[str, Refusal]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """The names of the requests so far."""

    def table(self, name: str) -> Table:
        found = self.tables.get(name)
        if found is None:
            raise Refusal(404, "OTSObjectNotExist", "Requested table does not exist.")
        return found

    def fail(self, api: str, times: int = 1, code: str = "OTSServerBusy") -> None:
        """Answer the next ``times`` requests of this name with an error."""
        self.faults += [(api, Refusal(503, code, "Server is busy."))] * times

    def lag(self, name: str) -> None:
        """Freeze the search index of a table, which may lag in the service, too."""
        self.tables[name].seen = dict(self.tables[name].rows)


class Tablestore:
    """The server; each instance is a separate database."""

    def __init__(self) -> None:
        self.instances: dict[str, Instance] = {}
        self.lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._time = 0
        self._http = _Server(self)
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def fresh(self, options: str = "") -> str:
        """Return the URL of a new instance; ``options`` are options of memctl, such as layout=."""
        name = f"agents{next(self._numbers)}"
        self.instances[name] = Instance()
        login = f"{KEY_ID}:{quote(SECRET, safe='')}"
        more = f"&{options}" if options else ""
        return f"tablestore+http://{login}@127.0.0.1:{self.port}?instance={name}{more}"

    def instance(self, url: str) -> Instance:
        """Return the instance of a URL."""
        return self.instances[parse_qs(urlsplit(url).query)["instance"][0]]

    def endpoint(self, url: str) -> dict[str, str]:
        """Return the arguments for AgentScope's classes that name the instance of a URL."""
        return {
            "end_point": f"http://127.0.0.1:{self.port}",
            "instance_name": parse_qs(urlsplit(url).query)["instance"][0],
            "access_key_id": KEY_ID,
            "access_key_secret": SECRET,
        }

    def alias(self, url: str) -> str:
        """Return another spelling of a URL."""
        return url.replace("127.0.0.1", "localhost", 1)

    def dump(self, url: str) -> Any:
        """Return the rows of an instance with their times, without empty tables."""
        return {
            name: {
                key: {column: (cell.value, cell.time) for column, cell in row.items()}
                for key, row in table.rows.items()
            }
            for name, table in self.instance(url).tables.items()
            if table.rows
        }

    def now(self) -> int:
        """Return the time in milliseconds, different for each call."""
        self._time = max(self._time + 1, int(time.time() * 1000))
        return self._time

    # Requests

    def answer(self, api: str, headers: dict[str, str], body: bytes) -> bytes:
        """Return the answer to a request.

        Raises:
            Refusal: the service answers with an error.
        """
        instance = self._log_in(api, headers, body)
        with self.lock:
            instance.asked.append(api)
            for fault in instance.faults:
                if fault[0] == api:
                    instance.faults.remove(fault)
                    raise fault[1]
            handle: Callable[[Instance, bytes], Any] = getattr(self, f"_{api}", None)  # type: ignore[assignment]
            if handle is None:
                raise Refusal(400, "OTSUnsupportedOperation", f"Unsupported operation: '{api}'.")
            answer = handle(instance, body)
            return b"" if answer is None else bytes(answer.SerializeToString())

    def _log_in(self, api: str, headers: dict[str, str], body: bytes) -> Instance:
        if len(body) > 2 * MOST_BODY_BYTES:
            raise Refusal(413, "OTSRequestBodyTooLarge", "The size of POST data is too large.")
        if headers.get("x-ots-accesskeyid") != KEY_ID:
            raise Refusal(403, "OTSAuthFailed", "The AccessKeyID does not exist.")
        given = {
            name: value
            for name, value in headers.items()
            if name.startswith("x-ots-") and name != "x-ots-signature"
        }
        signed = dict(given)
        context = RequestContext(Credentials(KEY_ID, SECRET))
        SignV2("utf8").make_request_signature_and_add_headers(f"/{api}", signed, context)
        if signed["x-ots-signature"] != headers.get("x-ots-signature"):
            raise Refusal(403, "OTSAuthFailed", "Signature mismatch.")
        found = self.instances.get(headers["x-ots-instancename"])
        if found is None:
            raise Refusal(403, "OTSAuthFailed", "The instance is not found.")
        return found

    # Tables

    def _ListTable(self, instance: Instance, body: bytes) -> Any:  # noqa: N802, ARG002
        return pb.ListTableResponse(table_names=sorted(instance.tables))

    def _CreateTable(self, instance: Instance, body: bytes) -> Any:  # noqa: N802
        request = pb.CreateTableRequest.FromString(body)
        name = request.table_meta.table_name
        if name in instance.tables:
            raise Refusal(409, "OTSObjectAlreadyExist", "Requested table already exists.")
        instance.tables[name] = Table(request.table_meta, indexes=list(request.index_metas))
        return pb.CreateTableResponse()

    def _DeleteTable(self, instance: Instance, body: bytes) -> Any:  # noqa: N802
        name = pb.DeleteTableRequest.FromString(body).table_name
        instance.table(name)
        del instance.tables[name]
        return pb.DeleteTableResponse()

    def _DescribeTable(self, instance: Instance, body: bytes) -> Any:  # noqa: N802
        table = instance.table(pb.DescribeTableRequest.FromString(body).table_name)
        throughput = pb.ReservedThroughputDetails(capacity_unit=pb.CapacityUnit(read=0, write=0))
        throughput.last_increase_time = int(time.time())
        return pb.DescribeTableResponse(
            table_meta=table.meta,
            reserved_throughput_details=throughput,
            table_options=pb.TableOptions(time_to_live=-1, max_versions=1),
            index_metas=table.indexes,
        )

    def _CreateIndex(self, instance: Instance, body: bytes) -> Any:  # noqa: N802
        request = pb.CreateIndexRequest.FromString(body)
        instance.table(request.main_table_name).indexes.append(request.index_meta)
        return pb.CreateIndexResponse()

    # Rows

    def _GetRow(self, instance: Instance, body: bytes) -> Any:  # noqa: N802
        request = pb.GetRowRequest.FromString(body)
        table = instance.table(request.table_name)
        key = _read_key(request.primary_key)
        row = _encoded_row(table, key, table.rows.get(key), request.columns_to_get)
        return pb.GetRowResponse(consumed=_consumed(), row=row)

    def _PutRow(self, instance: Instance, body: bytes) -> Any:  # noqa: N802
        request = pb.PutRowRequest.FromString(body)
        self._put(instance.table(request.table_name), request.row, request.condition)
        return pb.PutRowResponse(consumed=_consumed())

    def _UpdateRow(self, instance: Instance, body: bytes) -> Any:  # noqa: N802
        request = pb.UpdateRowRequest.FromString(body)
        self._update(instance.table(request.table_name), request.row_change, request.condition)
        return pb.UpdateRowResponse(consumed=_consumed())

    def _DeleteRow(self, instance: Instance, body: bytes) -> Any:  # noqa: N802
        request = pb.DeleteRowRequest.FromString(body)
        self._delete(instance.table(request.table_name), request.primary_key, request.condition)
        return pb.DeleteRowResponse(consumed=_consumed())

    def _BatchGetRow(self, instance: Instance, body: bytes) -> Any:  # noqa: N802
        request = pb.BatchGetRowRequest.FromString(body)
        if sum(len(one.primary_key) for one in request.tables) > MOST_READ_ROWS:
            raise Refusal(400, "OTSParameterInvalid", "Rows count exceeds the upper limit: 100.")
        answer = pb.BatchGetRowResponse()
        for part in request.tables:
            table = instance.table(part.table_name)
            found = answer.tables.add(table_name=part.table_name)
            for raw in part.primary_key:
                key = _read_key(raw)
                row = _encoded_row(table, key, table.rows.get(key), part.columns_to_get)
                found.rows.add(is_ok=True, consumed=_consumed(), row=row)
        return answer

    def _BatchWriteRow(self, instance: Instance, body: bytes) -> Any:  # noqa: N802
        request = pb.BatchWriteRowRequest.FromString(body)
        if sum(len(one.rows) for one in request.tables) > MOST_WRITTEN_ROWS:
            raise Refusal(400, "OTSParameterInvalid", "Rows count exceeds the upper limit: 200.")
        if len(body) > MOST_BODY_BYTES:
            raise Refusal(400, "OTSParameterInvalid", "The total data size of rows exceeds 4 MB.")
        answer = pb.BatchWriteRowResponse()
        work = {pb.PUT: self._put, pb.UPDATE: self._update, pb.DELETE: self._delete}
        for part in request.tables:
            table = instance.table(part.table_name)
            found = answer.tables.add(table_name=part.table_name)
            for row in part.rows:
                try:
                    work[row.type](table, row.row_change, row.condition)
                except Refusal as refusal:
                    error = pb.Error(code=refusal.code, message=refusal.message)
                    found.rows.add(is_ok=False, error=error)
                else:
                    found.rows.add(is_ok=True, consumed=_consumed())
        return answer

    def _GetRange(self, instance: Instance, body: bytes) -> Any:  # noqa: N802
        request = pb.GetRangeRequest.FromString(body)
        table = instance.table(request.table_name)
        start = _read_key(request.inclusive_start_primary_key)
        stop = _read_key(request.exclusive_end_primary_key)
        forward = request.direction == pb.FORWARD
        keys = sorted(table.rows, key=_order)
        orders = [_order(key) for key in keys]
        if forward:
            first, last = (bisect.bisect_left(orders, _order(one)) for one in (start, stop))
            keys = keys[first:last]
        else:
            first, last = (bisect.bisect_right(orders, _order(one)) for one in (stop, start))
            keys = keys[first:last][::-1]
        most = min(request.limit or MOST_RANGE_ROWS, MOST_RANGE_ROWS)
        answer = pb.GetRangeResponse(consumed=_consumed(), rows=b"")
        rows: list[bytes] = []
        size = 0
        for at, key in enumerate(keys):
            if at >= most or size >= MOST_BODY_BYTES:
                answer.next_start_primary_key = _encoded_row(table, key, {}, ())
                break
            row = table.rows[key]
            if request.filter and not _passes(filters.Filter.FromString(request.filter), row):
                continue
            wanted = set(request.columns_to_get)
            if wanted and wanted.isdisjoint([*row, *table.names]):
                continue  # a row without any of the columns is not returned
            rows.append(_encoded_row(table, key, row, wanted)[4:])
            size += len(rows[-1])
        if rows:
            answer.rows = struct.pack("<i", _HEADER) + b"".join(rows)
        return answer

    def _put(self, table: Table, raw: bytes, condition: Any) -> None:
        key, raw_key, cells = _read_row(raw)
        self._check(table, key, condition)
        now = self.now()
        table.rows[key] = {name: replace(cell, time=now) for name, cell in cells.items()}
        table.raw_keys[key] = raw_key

    def _update(self, table: Table, raw: bytes, condition: Any) -> None:
        key, raw_key, cells = _read_row(raw)
        self._check(table, key, condition)
        now = self.now()
        changed = {name: replace(cell, time=now) for name, cell in cells.items()}
        table.rows[key] = table.rows.get(key, {}) | changed
        table.raw_keys[key] = raw_key

    def _delete(self, table: Table, raw: bytes, condition: Any) -> None:
        key = _read_key(raw)
        self._check(table, key, condition)
        table.rows.pop(key, None)

    def _check(self, table: Table, key: Key, condition: Any) -> None:
        if len(key) != len(table.names):
            raise Refusal(400, "OTSInvalidPK", "Validate PK size fail.")
        row = table.rows.get(key)
        expected = condition.row_existence
        if expected != pb.IGNORE and (row is not None) != (expected == pb.EXPECT_EXIST):
            raise _condition_failed()
        if condition.column_condition and not _passes(
            filters.Filter.FromString(condition.column_condition), row or {}
        ):
            raise _condition_failed()

    # The search index

    def _ListSearchIndex(self, instance: Instance, body: bytes) -> Any:  # noqa: N802
        name = search.ListSearchIndexRequest.FromString(body).table_name
        tables = [name] if name else list(instance.tables)
        return search.ListSearchIndexResponse(
            indices=[
                search.IndexInfo(table_name=table, index_name=index)
                for table in tables
                for index in instance.table(table).searches
            ]
        )

    def _CreateSearchIndex(self, instance: Instance, body: bytes) -> Any:  # noqa: N802
        request = search.CreateSearchIndexRequest.FromString(body)
        instance.table(request.table_name).searches[request.index_name] = request.schema
        return search.CreateSearchIndexResponse()

    def _DeleteSearchIndex(self, instance: Instance, body: bytes) -> Any:  # noqa: N802
        request = search.DeleteSearchIndexRequest.FromString(body)
        instance.table(request.table_name).searches.pop(request.index_name, None)
        return search.DeleteSearchIndexResponse()

    def _DescribeSearchIndex(self, instance: Instance, body: bytes) -> Any:  # noqa: N802
        request = search.DescribeSearchIndexRequest.FromString(body)
        table = instance.table(request.table_name)
        if request.index_name not in table.searches:
            raise Refusal(404, "OTSObjectNotExist", "Requested index does not exist.")
        return search.DescribeSearchIndexResponse(schema=table.searches[request.index_name])

    def _Search(self, instance: Instance, body: bytes) -> Any:  # noqa: N802
        request = search.SearchRequest.FromString(body)
        table = instance.table(request.table_name)
        schema = table.searches.get(request.index_name)
        if schema is None:
            raise Refusal(404, "OTSObjectNotExist", "Requested index does not exist.")
        arrays = {one.field_name for one in schema.field_schemas if one.is_array}
        query = search.SearchQuery.FromString(request.search_query)
        rows = table.rows if table.seen is None else table.seen
        found = [
            key
            for key in sorted(rows, key=_order)
            if _matches(query.query, _fields(table, key, rows[key]), arrays)
        ]
        start, _, order = (query.token or b"0").partition(b" ")
        by_score = order == b"score" or any(one.HasField("score_sort") for one in query.sort.sorter)
        if by_score:
            scores = {key: _score(query.query, _fields(table, key, rows[key])) for key in found}
            found.sort(key=lambda key: -scores[key])
        start = int(start)
        limit = min(query.limit, MOST_HITS)
        answer = search.SearchResponse(total_hits=len(found), is_all_succeed=True)
        returned = (
            ()
            if request.columns_to_get.return_type == search.RETURN_ALL
            else [*request.columns_to_get.column_names, "\0"]
        )
        for key in found[start : start + limit]:
            answer.rows.append(_encoded_row(table, key, rows[key], returned))
            answer.search_hits.add(score=scores[key] if by_score else float("nan"))
        if start + limit < len(found):
            answer.next_token = b"%d" % (start + limit) + (b" score" if by_score else b"")
        return answer


def _consumed() -> Any:
    return pb.ConsumedCapacity(capacity_unit=pb.CapacityUnit(read=1, write=1))


# PlainBuffer


class _Reader:
    """A reader of the bytes of a row."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def tag(self) -> int:
        """Return the next tag without consuming it; 0 at the end."""
        return self.data[self.at] if self.at < len(self.data) else 0

    def take(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self) -> int:
        return int(struct.unpack("<i", self.take(4))[0])


def _read_value(reader: _Reader) -> Value:
    reader.number()
    kind = reader.take(1)[0]
    match kind:
        case 0:
            return struct.unpack("<q", reader.take(8))[0]
        case 1:
            return struct.unpack("<d", reader.take(8))[0]
        case 2:
            return reader.take(1) != b"\0"
        case 3:
            return reader.take(reader.number()).decode("utf-8", "surrogateescape")
        case 7:
            return reader.take(reader.number())
        case 9 | 10:
            return _Bound(kind)
    raise Refusal(400, "OTSParameterInvalid", f"Unknown type of a value: {kind}.")


@dataclass(frozen=True)
class _Bound:
    """The least or the greatest of all values of a primary key."""

    kind: int


def _order(key: Key) -> list[tuple[int, Value]]:
    return [
        ((-1 if one.kind == _LEAST else 1), 0)
        if isinstance(one, _Bound)
        else (0, one.encode("utf-8", "surrogateescape") if isinstance(one, str) else one)
        for one in key
    ]


def _read_cell(reader: _Reader) -> tuple[str, Cell]:
    start = reader.at
    reader.take(2)
    name = reader.take(reader.number()).decode()
    value: Value = None
    if reader.tag() == _VALUE:
        reader.take(1)
        value = _read_value(reader)
    raw = reader.data[start : reader.at]
    if reader.tag() in (_TYPE, _TIME):
        raise Refusal(400, "OTSUnsupportedOperation", "A cell with a type or a time of its own.")
    reader.take(1)
    return name, Cell(value, raw, reader.take(1)[0])


def _read_row(data: bytes) -> tuple[Key, bytes, dict[str, Cell]]:
    """Return a row: the primary key, the bytes of the key, and the columns."""
    reader = _Reader(data)
    if reader.number() != _HEADER or reader.take(1)[0] != _ROW_KEY:
        raise Refusal(400, "OTSParameterInvalid", "Invalid plain buffer.")
    start = reader.at
    key = []
    while reader.tag() == _CELL:
        name, cell = _read_cell(reader)
        key.append(cell.value)
        if isinstance(cell.value, str) and len(cell.value.encode()) > MOST_KEY_BYTES:
            raise Refusal(
                400,
                "OTSParameterInvalid",
                f"The length of primary key column: '{name}' exceeds the MaxLength: 1024.",
            )
    raw_key = data[start : reader.at]
    cells = {}
    if reader.tag() == _ROW_DATA:
        reader.take(1)
        while reader.tag() == _CELL:
            name, cell = _read_cell(reader)
            if len(cell.raw) - 15 - len(name) > MOST_COLUMN_BYTES:
                raise Refusal(
                    400,
                    "OTSParameterInvalid",
                    f"The length of attribute column: '{name}' exceeds the MaxLength: 2097152.",
                )
            cells[name] = cell
    return tuple(key), raw_key, cells


def _read_key(data: bytes) -> Key:
    return _read_row(data)[0]


def _encoded_row(
    table: Table, key: Key, row: dict[str, Cell] | None, columns: Iterable[str]
) -> bytes:
    """Return a row with the named columns, or with all if no column is named; empty if no row."""
    wanted = frozenset(columns)
    if row is None:
        return b""
    raw = table.raw_keys[key]
    sum = 0
    reader = _Reader(raw)
    while reader.tag() == _CELL:
        sum = CRC8_TABLE[sum ^ _read_cell(reader)[1].sum]
    cells = [row[name].encoded() for name in sorted(row) if not wanted or name in wanted]
    for _, one in cells:
        sum = CRC8_TABLE[sum ^ one]
    data = bytes([_ROW_DATA]) + b"".join(cell for cell, _ in cells) if cells else b""
    end = bytes([_ROW_SUM, CRC8_TABLE[sum]])
    return struct.pack("<i", _HEADER) + bytes([_ROW_KEY]) + raw + data + end


# Conditions and queries


def _passes(condition: Any, row: dict[str, Cell]) -> bool:
    if condition.type == filters.FT_SINGLE_COLUMN_VALUE:
        single = filters.SingleColumnValueFilter.FromString(condition.filter)
        cell = row.get(single.column_name)
        if cell is None:
            return not single.filter_if_missing
        value = _condition_value(single.column_value)
        compared = {
            filters.CT_EQUAL: cell.value == value,
            filters.CT_NOT_EQUAL: cell.value != value,
        }
        if single.comparator not in compared:
            raise Refusal(400, "OTSUnsupportedOperation", "A comparison that is not known.")
        return compared[single.comparator]
    several = filters.CompositeColumnValueFilter.FromString(condition.filter)
    found = [_passes(one, row) for one in several.sub_filters]
    if several.combinator == filters.LO_NOT:
        return not found[0]
    return all(found) if several.combinator == filters.LO_AND else any(found)


def _condition_value(data: bytes) -> Value:
    """Return a value that is encoded without tag and length."""
    reader = _Reader(data)
    if reader.tag() == _VALUE:
        reader.take(1)
        return _read_value(reader)
    return _read_value(_Reader(struct.pack("<i", len(data)) + data))


def _fields(table: Table, key: Key, row: dict[str, Cell]) -> dict[str, Value]:
    names = dict(zip(table.names, key, strict=True))
    return names | {name: cell.value for name, cell in row.items()}


def _matches(query: Any, fields: dict[str, Value], arrays: set[str]) -> bool:
    def values(name: str) -> list[Value]:
        value = fields.get(name)
        if value is None:
            return []
        if name in arrays:
            with suppress(ValueError):
                found = json.loads(value)
                return found if isinstance(found, list) else [found]
            return []
        return [value]

    match query.type:
        case search.MATCH_ALL_QUERY:
            return True
        case search.TERM_QUERY:
            term = search.TermQuery.FromString(query.query)
            return _condition_value(term.term) in values(term.field_name)
        case search.TERMS_QUERY:
            terms = search.TermsQuery.FromString(query.query)
            wanted = [_condition_value(one) for one in terms.terms]
            return any(one in wanted for one in values(terms.field_name))
        case search.MATCH_QUERY:
            words = search.MatchQuery.FromString(query.query)
            return bool(_occurrences(words, fields))
        case search.BOOL_QUERY:
            several = search.BoolQuery.FromString(query.query)
            needed = (*several.must_queries, *several.filter_queries)
            if not all(_matches(one, fields, arrays) for one in needed):
                return False
            if any(_matches(one, fields, arrays) for one in several.must_not_queries):
                return False
            should = [_matches(one, fields, arrays) for one in several.should_queries]
            return not should or any(should)
    raise Refusal(400, "OTSUnsupportedOperation", "A query that is not known.")


def _occurrences(words: Any, fields: dict[str, Value]) -> int:
    """Return the number of occurrences of the words of a match query in its column."""
    text = re.findall(r"\w+", str(fields.get(words.field_name, "")).lower())
    return sum(text.count(word) for word in re.findall(r"\w+", words.text.lower()))


def _score(query: Any, fields: dict[str, Value]) -> float:
    """Return the score of a matching row."""
    match query.type:
        case search.MATCH_QUERY:
            return _occurrences(search.MatchQuery.FromString(query.query), fields)
        case search.BOOL_QUERY:
            several = search.BoolQuery.FromString(query.query)
            return sum(_score(one, fields) for one in several.must_queries)
    return 0.0


def make_text_index(server: Tablestore, url: str) -> None:
    """Create the search index that AgentScope creates for the table of its memory."""
    fields = [
        tablestore.FieldSchema(name, tablestore.FieldType.KEYWORD)
        for name in ("document_id", "tenant_id", "session_id")
    ]
    analyzer = tablestore.AnalyzerType.MAXWORD
    fields.append(tablestore.FieldSchema("text", tablestore.FieldType.TEXT, analyzer=analyzer))

    async def work() -> None:
        async with tablestore.AsyncOTSClient(**server.endpoint(url)) as client:
            meta = tablestore.SearchIndexMeta(fields)
            await client.create_search_index("agentscope_memory", "any_name", meta)

    # The caller may be in a running event loop.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work()).result()


# HTTP


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, service: Tablestore) -> None:
        self.service = service
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect early."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        api = self.path.strip("/")
        status, signed = 200, True
        try:
            answer = self.server.service.answer(api, headers, body)
        except Refusal as refusal:
            status, signed = refusal.status, refusal.code != "OTSAuthFailed"
            answer = pb.Error(code=refusal.code, message=refusal.message).SerializeToString()
        self._reply(f"/{api}", status, answer, signed=signed)

    def _reply(self, path: str, status: int, answer: bytes, *, signed: bool) -> None:
        own = {
            "x-ots-date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z"),
            "x-ots-requestid": "0005-of-a-test",
            "x-ots-contenttype": "protocol buffer",
            "x-ots-contentmd5": base64.b64encode(hashlib.md5(answer).digest()).decode(),
        }
        self.send_response(status)
        for name, value in own.items():
            self.send_header(name, value)
        if signed:
            signature = SignV2("utf8").make_response_signature(path, own, SECRET)
            self.send_header("Authorization", f"OTS {KEY_ID}:{signature}")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        self.wfile.flush()
