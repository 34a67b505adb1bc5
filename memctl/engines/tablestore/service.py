"""A Tablestore instance: URL, credentials, row requests, and the translation of errors.

The SDK is ``tablestore``.  AgentScope uses the same asynchronous client.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from math import isnan
from typing import Any, NamedTuple, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from msgspec import Struct, field

# Hide a warning of the SDK for developers: a part of the SDK is not compiled for this Python.
logging.getLogger("tablestore").addHandler(logging.NullHandler())

import aiohttp  # noqa: E402
import tablestore  # noqa: E402
from tablestore.error import OTSClientError, OTSServiceError  # noqa: E402

from memctl.errors import Lost, MemctlError, NotFound, Unavailable, UsageError  # noqa: E402
from memctl.location import Location, visible  # noqa: E402

T = TypeVar("T")

Key = tuple[str | int, ...]
"""The values of a primary key."""
Columns = dict[str, Any]
"""The columns of a row: texts, numbers, booleans, and bytes as ``bytearray``."""

LARGEST_KEY = 1024
"""The most bytes of a text in a primary key: a limit of the service."""
LARGEST_COLUMN = 2 * 1024 * 1024
"""The most bytes of a column: a limit of the service."""
_READ_TOGETHER = 100
_FOUND_TOGETHER = 100
_WRITTEN_TOGETHER = 200
_REQUEST_BYTES = 3 * 1024 * 1024
"""The most bytes of rows in a request; the service accepts 4 MB including the encoding of rows."""
_ROW_BYTES = 400

_LOGGER = "memctl.tablestore"
# Without a log level, the SDK formats every request as text.
logging.getLogger(_LOGGER).setLevel(logging.CRITICAL)
_VARIABLES = (
    ("TABLESTORE_ACCESS_KEY_ID", "TABLESTORE_ACCESS_KEY_SECRET", "TABLESTORE_SESSION_TOKEN"),
    (
        "ALIBABA_CLOUD_ACCESS_KEY_ID",
        "ALIBABA_CLOUD_ACCESS_KEY_SECRET",
        "ALIBABA_CLOUD_SECURITY_TOKEN",
    ),
)
"""The SDK's environment variables: key id, secret, and the session token for both."""
_BUSY = frozenset(
    {
        "OTSServerBusy",
        "OTSNotEnoughCapacityUnit",
        "OTSOperationThrottled",
        "OTSPartitionUnavailable",
        "OTSServerUnavailable",
        "OTSTimeout",
        "OTSInternalServerError",
        "OTSTableNotReady",
        "OTSRowOperationConflict",
        "OTSQuotaExhausted",
    }
)
"""Error codes of the service after which a retry may help."""
CONDITION_FAILED = "OTSConditionCheckFail"


class Row(NamedTuple):
    """A row as read: primary key, columns, and the write time of each column.

    Times are in milliseconds since 1970, as the service reports them.
    """

    key: Key
    columns: Columns
    times: dict[str, int]


class SearchIndex(NamedTuple):
    """A search index: its name, the column whose words it finds, and the columns it can filter."""

    name: str
    column: str
    keywords: frozenset[str]


class Put(Struct, frozen=True):
    """A row to write with all of its columns; with ``new``, no row with the key may exist."""

    key: Key
    columns: Columns
    new: bool = True


class Update(Struct, frozen=True):
    """Columns to write to an existing row; the write fails unless its columns match ``where``."""

    key: Key
    columns: Columns
    where: Columns = field(default_factory=dict)


class Delete(Struct, frozen=True):
    """A row to delete; with ``where``, the row must exist and have these column values."""

    key: Key
    where: Columns | None = None


RowChange = Put | Update | Delete


class RowFailure(NamedTuple):
    """The service's reason for not changing a row: an error code and a text."""

    code: str
    message: str


class TableSchema(Struct, frozen=True):
    """A table to create: its name, primary key, further columns, and local secondary index.

    ``key`` and ``columns`` have the name and type of each column.  Types are type names of the SDK,
    such as ``STRING``.  ``index`` has the name and the columns of the index, or is None.
    """

    name: str
    key: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...] = ()
    index: tuple[str, tuple[str, ...]] | None = None


class _Patience(tablestore.DefaultRetryPolicy):  # type: ignore[misc]
    """Has the SDK retry requests for about 15 seconds; memctl itself retries after that."""

    max_retry_times = 8


class TablestoreInstance:
    """The Tablestore instance of a location."""

    def __init__(self, location: Location, environ: Mapping[str, str] = os.environ) -> None:
        """Check the location and credentials; nothing is connected.

        Raises:
            UsageError: the URL is not valid.
            Unavailable: the credentials are missing.
        """
        self.label = location.label
        parts = urlsplit(location.url)
        if parts.query or parts.path.strip("/"):
            raise UsageError(
                f"{self.label} has a path or an option that is not known",
                "known: layout, table, instance, path, state, state_path",
            )
        self._host = (parts.hostname or "").lower()
        self.name = location.options.get("instance") or self._host.partition(".")[0]
        if not self._host or ("." not in self._host and "instance" not in location.options):
            raise UsageError(
                f"{self.label} is not the address of an instance",
                "write tablestore://INSTANCE.REGION.ots.aliyuncs.com, or add ?instance=NAME",
            )
        key, secret, token = _credentials(parts, environ, self.label)
        scheme = "http" if parts.scheme.endswith("+http") else "https"
        self._port = parts.port
        port = f":{parts.port}" if parts.port else ""
        host = f"[{self._host}]" if ":" in self._host else self._host
        try:
            self._client = tablestore.AsyncOTSClient(
                f"{scheme}://{host}{port}",
                key,
                secret,
                self.name,
                sts_token=token,
                retry_policy=_Patience(),
                logger_name=_LOGGER,
            )
        except OTSClientError as error:
            raise UsageError(f"{self.label} cannot be used: {error}", "check the URL") from error

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()

    def identity(self) -> str:
        """Return a text that is equal for all addresses of an instance (public, internal, VPC)."""
        labels = self._host.split(".")
        if labels[-2:] == ["aliyuncs", "com"] and len(labels) > 3:
            where = labels[1]
        else:
            where = "localhost" if self._host in ("127.0.0.1", "::1") else self._host
            if self._port not in (None, 80, 443):
                where += f":{self._port}"
        return f"tablestore:{where}/{self.name}"

    # Tables

    async def tables(self) -> frozenset[str]:
        """Return the names of all tables of the instance.

        Raises:
            Unavailable: the instance cannot be reached, does not exist, or refuses the login.
        """
        return frozenset(await self._call(self._client.list_table))

    async def key_of(self, table: str) -> tuple[str, ...]:
        """Return the column names of the primary key of a table.

        Raises:
            NotFound, Unavailable: see ``scan``.
        """
        found = await self._call(partial(self._client.describe_table, table))
        return tuple(name for name, *_ in found.table_meta.schema_of_primary_key)

    async def create(self, schema: TableSchema) -> None:
        """Create a table, unless another program has created the table.

        Raises:
            Unavailable: see ``tables``.
        """
        meta = tablestore.TableMeta(schema.name, list(schema.key), list(schema.columns))
        throughput = tablestore.ReservedThroughput(tablestore.CapacityUnit(0, 0))
        indexes = []
        if schema.index is not None:
            name, columns = schema.index
            local = tablestore.SecondaryIndexType.LOCAL_INDEX
            indexes.append(tablestore.SecondaryIndexMeta(name, list(columns), [], local))
        try:
            await self._client.create_table(meta, tablestore.TableOptions(), throughput, indexes)
        except OTSServiceError as error:
            if error.get_error_code() != "OTSObjectAlreadyExist":
                raise self._translate(error) from error
        except _FAILURES as error:
            raise self._translate(error) from error

    # Rows

    async def scan(
        self,
        table: str,
        key: Sequence[str],
        columns: Sequence[str] = (),
        *,
        start: Sequence[str] = (),
        where: Sequence[tuple[str, str]] = (),
        limit: int | None = None,
    ) -> AsyncGenerator[list[Row]]:
        """Yield the rows of a table in the order of their primary key, in lists.

        ``key`` names the columns of the primary key.  ``columns`` names the columns to read; if
        empty, all are read.  A row without any of the named columns is yielded only if ``columns``
        has a column of the primary key.  ``start`` gives the first values of the primary keys to
        read, ``limit`` the maximum number of rows.  ``where`` gives names and values of columns:
        only rows that match at least one pair are yielded; an empty ``where`` selects all rows.

        Raises:
            NotFound: the table does not exist.
            Unavailable: the service cannot be reached, or refuses the request.
        """
        fixed = list(zip(key, start, strict=False))
        rest = key[len(fixed) :]
        first: Any = [*fixed, *((name, tablestore.INF_MIN) for name in rest)]
        last = [*fixed, *((name, tablestore.INF_MAX) for name in rest)]
        condition = _any_of(where)
        while first is not None:
            _, first, rows, _ = await self._call(
                partial(
                    self._client.get_range,
                    table,
                    "FORWARD",
                    first,
                    last,
                    columns_to_get=list(columns) or None,
                    limit=limit,
                    column_filter=condition,
                    max_version=1,
                )
            )
            if rows:
                yield [_row(row) for row in rows]
            if limit is not None:
                return

    async def text_index(self, table: str, column: str) -> SearchIndex | None:
        """Return a search index that finds words of a table's column; None if there is none.

        Raises:
            NotFound, Unavailable: see ``scan``.
        """
        names = await self._call(partial(self._client.list_search_index, table))
        for name in sorted(index for _, index in names):
            about, _ = await self._call(partial(self._client.describe_search_index, table, name))
            types = {one.field_name: one.field_type for one in about.fields}
            if types.get(column) == tablestore.FieldType.TEXT:
                keyword = tablestore.FieldType.KEYWORD
                keywords = {field for field, type in types.items() if type == keyword}
                return SearchIndex(name, column, frozenset(keywords))
        return None

    async def search(
        self, table: str, index: SearchIndex, text: str, where: Mapping[str, Collection[str]]
    ) -> AsyncGenerator[list[tuple[Row, float]]]:
        """Yield rows that have any word of ``text`` in the index's column, with their scores.

        The rows come in lists, best score first.  ``where`` has the accepted values of columns.
        Only the keyword columns of the index are filtered; other columns are ignored.

        Raises:
            NotFound, Unavailable: see ``scan``.
        """
        filters = [
            tablestore.TermsQuery(name, sorted(values))
            for name, values in where.items()
            if name in index.keywords
        ]
        words = tablestore.MatchQuery(index.column, text)
        query = tablestore.BoolQuery(must_queries=[words], filter_queries=filters)
        every = tablestore.ColumnsToGet(return_type=tablestore.ColumnReturnType.ALL)
        token = b""
        while True:
            # A token includes the order, so a request with a token must not repeat the order.
            order = None if token else tablestore.Sort([tablestore.ScoreSort()])
            one = tablestore.SearchQuery(
                query, sort=order, next_token=token or None, limit=_FOUND_TOGETHER
            )
            search = partial(self._client.search, table, index.name, one, every)
            answer = await self._call(search)
            yield [
                (_found(hit.row), 0.0 if hit.score is None or isnan(hit.score) else hit.score)
                for hit in answer.search_hits
            ]
            token = answer.next_token
            if not token:
                return

    async def get(self, table: str, keys: Sequence[Sequence[tuple[str, Any]]]) -> list[Row | None]:
        """Return the rows with these primary keys, in order; None stands for a missing row.

        Each key has the name and value of its columns.

        Raises:
            NotFound, Unavailable: see ``scan``.
        """
        found: list[Row | None] = []
        for start in range(0, len(keys), _READ_TOGETHER):
            some = [list(key) for key in keys[start : start + _READ_TOGETHER]]
            request = tablestore.BatchGetRowRequest()
            request.add(tablestore.TableInBatchGetRowItem(table, some, None, None, 1))
            answer = await self._call(partial(self._client.batch_get_row, request))
            for item in answer.get_result_by_table(table):
                if not item.is_ok:
                    raise self._refused(item.error_code, item.error_message or "")
                found.append(None if item.row is None else _row(item.row))
        return found

    async def change(
        self,
        table: str,
        key: Sequence[str],
        changes: Sequence[RowChange],
        outcomes: list[RowFailure | None],
    ) -> None:
        """Change rows in batches as large as the service accepts.

        ``key`` names the columns of the primary key.  For each change, in order, None or the
        failure is appended to ``outcomes``.  The service has no transactions over rows: each change
        succeeds or fails alone.  A change is retried if the service was busy.

        Raises:
            NotFound, Unavailable: see ``scan``.  Some rows may have been changed.
        """
        batch: list[RowChange] = []
        size = 0
        for change in changes:
            more = _size(change)
            if batch and (len(batch) >= _WRITTEN_TOGETHER or size + more > _REQUEST_BYTES):
                outcomes += await self._change(table, key, batch)
                batch, size = [], 0
            batch.append(change)
            size += more
        if batch:
            outcomes += await self._change(table, key, batch)

    async def _change(
        self, table: str, key: Sequence[str], changes: list[RowChange]
    ) -> list[RowFailure | None]:
        items = [_item(key, change) for change in changes]
        outcomes: list[RowFailure | None] = [None] * len(items)
        pending = list(range(len(items)))
        for _ in range(_Patience.max_retry_times):
            request = tablestore.BatchWriteRowRequest()
            some = [items[at] for at in pending]
            request.add(tablestore.TableInBatchWriteRowItem(table, some))
            answer = await self._call(partial(self._client.batch_write_row, request))
            parts = (answer.get_put(), answer.get_update(), answer.get_delete())
            again = []
            for one in (one for done, failed in parts for one in (*done, *failed)):
                at = pending[one.index]
                outcomes[at] = None
                if not one.is_ok:
                    outcomes[at] = RowFailure(one.error_code, one.error_message or "")
                    if one.error_code in _BUSY:
                        again.append(at)
            pending = sorted(again)
            if not pending:
                return outcomes
        failure = outcomes[pending[0]]
        assert failure is not None
        raise self._refused(failure.code, failure.message)

    # Errors

    async def _call(self, request: Callable[[], Awaitable[T]]) -> T:
        try:
            return await request()
        except _FAILURES as error:
            raise self._translate(error) from error

    def _translate(self, error: BaseException) -> MemctlError:
        match error:
            case OTSServiceError():
                return self._refused(error.get_error_code(), error.get_error_message())
            case OTSClientError():
                text = _first_line(error)
                return Unavailable(
                    f"{self.label} does not answer as Tablestore does: {text}",
                    "check the endpoint, and the clock of this machine",
                )
            case aiohttp.ClientConnectorDNSError():
                return Unavailable(
                    f"cannot reach {self.label}: there is no host {self._host}",
                    "check the names of instance and region",
                )
            case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
                return Unavailable(
                    f"cannot reach {self.label}: {_first_line(error)}", "check the endpoint"
                )
            case _:
                return Lost(
                    f"cannot reach {self.label}: {_first_line(error)}",
                    "check that this machine reaches the endpoint, which may be that of a VPC",
                )

    def _refused(self, code: str, message: str) -> MemctlError:
        text = visible(message).rstrip(".") or code
        if code in _BUSY:
            return Lost(
                f"{self.label} is busy: {text}",
                "try again later, or give the instance more capacity",
            )
        if code == "OTSObjectNotExist":
            return NotFound(
                f"{self.label} has no such table: {text}", "name the table with ?table=NAME"
            )
        if code == "OTSAuthFailed" and "instance" in message:
            return Unavailable(
                f"{self.label} refuses the instance {visible(self.name)}: {text}",
                "check instance and region, and what the key may do",
            )
        if code in ("OTSAuthFailed", "OTSNoPermissionAccess"):
            return Unavailable(
                f"{self.label} refuses the login: {text}",
                "check the key: that of the URL, of the alias or of TABLESTORE_ACCESS_KEY_ID",
            )
        return Unavailable(f"{self.label} refuses a request: {text} ({code})")


_FAILURES = (OTSServiceError, OTSClientError, aiohttp.ClientError, TimeoutError, OSError)


def _credentials(
    parts: SplitResult, environ: Mapping[str, str], label: str
) -> tuple[str, str, str | None]:
    """Return the id of the access key, its secret, and the session token or None.

    They come from the URL or from environment variables.

    Raises:
        Unavailable: the key or its secret is missing.
    """
    key, secret = (unquote(one or "") for one in (parts.username, parts.password))
    if key and secret:
        return key, secret, None
    for id_name, secret_name, token_name in _VARIABLES:
        found = environ.get(id_name, "")
        if found and (not key or found == key):
            secret = secret or environ.get(secret_name, "")
            if secret:
                return found, secret, environ.get(token_name) or None
    if key:
        raise Unavailable(
            f"{label} has no secret of its key", "set TABLESTORE_ACCESS_KEY_SECRET, or an alias"
        )
    raise Unavailable(
        f"{label} has no key",
        "set TABLESTORE_ACCESS_KEY_ID and TABLESTORE_ACCESS_KEY_SECRET, or write "
        "tablestore://KEY_ID@... with password_env in an alias",
    )


def _any_of(where: Sequence[tuple[str, str]]) -> Any:
    """Return the SDK's condition that a row has one of the column values; None for no values."""
    equal = tablestore.ComparatorType.EQUAL
    singles = [
        tablestore.SingleColumnCondition(name, value, equal, pass_if_missing=False)
        for name, value in where
    ]
    if len(singles) < 2:
        return singles[0] if singles else None
    some = tablestore.CompositeColumnCondition(tablestore.LogicalOperator.OR)
    for single in singles:
        some.add_sub_condition(single)
    return some


def _condition(existence: str, where: Columns) -> Any:
    equal = tablestore.ComparatorType.EQUAL
    singles = [
        tablestore.SingleColumnCondition(name, value, equal, pass_if_missing=False)
        for name, value in where.items()
    ]
    if len(singles) < 2:
        return tablestore.Condition(existence, singles[0] if singles else None)
    every = tablestore.CompositeColumnCondition(tablestore.LogicalOperator.AND)
    for single in singles:
        every.add_sub_condition(single)
    return tablestore.Condition(existence, every)


def _item(key: Sequence[str], change: RowChange) -> Any:
    """Return a row change for the SDK's batch request."""
    expect = tablestore.RowExistenceExpectation
    name = list(zip(key, change.key, strict=True))
    match change:
        case Put(_, columns, new):
            condition = _condition(expect.EXPECT_NOT_EXIST if new else expect.IGNORE, {})
            return tablestore.PutRowItem(tablestore.Row(name, list(columns.items())), condition)
        case Update(_, columns, where):
            row = tablestore.Row(name, {"PUT": list(columns.items())})
            return tablestore.UpdateRowItem(row, _condition(expect.EXPECT_EXIST, where))
        case Delete(_, gone):
            existence = expect.IGNORE if gone is None else expect.EXPECT_EXIST
            return tablestore.DeleteRowItem(tablestore.Row(name), _condition(existence, gone or {}))


def _size(change: RowChange) -> int:
    """Return the approximate size in bytes of a row change in a request."""
    columns = {} if isinstance(change, Delete) else change.columns
    return _ROW_BYTES + sum(
        len(value.encode()) if isinstance(value, str) else 64 for value in columns.values()
    )


def _row(row: Any) -> Row:
    return Row(
        tuple(value for _, value in row.primary_key),
        {name: value for name, value, _ in row.attribute_columns},
        {name: time for name, _, time in row.attribute_columns},
    )


def _found(row: Any) -> Row:
    key, columns = row[0], row[1]
    return Row(tuple(one[1] for one in key), {one[0]: one[1] for one in columns}, {})


def _first_line(error: BaseException) -> str:
    lines = visible(str(error).strip().partition("\n")[0])
    return lines.rstrip(".") or type(error).__name__
