"""The values of a table's columns, in JSON and for the driver."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from sqlalchemy import (
    JSON,
    BigInteger,
    Connection,
    Date,
    DateTime,
    Float,
    Integer,
    LargeBinary,
    Numeric,
    String,
    Time,
    Uuid,
    inspect,
)
from sqlalchemy.dialects.postgresql import JSON as POSTGRESQL_JSON
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeEngine

from memctl.engines.sql.schema import TextForm
from memctl.errors import BadData, Lost, Unavailable
from memctl.location import visible
from memctl.machine.time_zones import zone_named

if TYPE_CHECKING:
    from memctl.engines.sql.connection import AsyncConnection
    from memctl.engines.sql.database import Database

_BYTES = "base64"
_MILLISECONDS, _MICROSECONDS, _NANOSECONDS = 10**11, 10**14, 10**17
"""A number of at least this size is a time in milli-, micro- or nanoseconds (after 1973)."""
_NUMBER = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
_FAR = re.compile(
    r"-?infinity|24:00:00([+-][\d:]+)?|-?\d+:\d\d:\d\d(\.\d+)?"
    r"|\d{4,}-\d\d-\d\d( \d\d:[\d:.+-]+)?( BC)?",
    re.ASCII,
)
"""The form of a ``FarTime``."""
_AT_ZONE = re.compile(r"(?:at time zone |timezone\()\(?'([^']+)'", re.IGNORECASE)
"""The zone in a default value such as ``now() AT TIME ZONE 'utc'``."""
_NOW = re.compile(r"_timestamp\b|\blocaltimestamp\b|\bnow\b", re.IGNORECASE)
"""The present time in a default value."""
_LIMITS = {datetime.min, datetime.max, date.min, date.max}
"""The times that the driver of PostgreSQL takes for infinite."""
_LARGEST = (2 - 2**-23) * 2.0**127
"""The largest number in single precision."""


class FarTime(str):
    """A time that neither Python nor the driver can hold, as the database's text.

    Examples are infinite times, times BC, ``24:00:00``, and dates without a month.
    """

    __slots__ = ()


def rank_of(moment: date | time | FarTime) -> tuple[float, str]:
    """Return the rank of a time among the times of a column, by year and then by text."""
    match moment:
        case datetime():
            return moment.year, moment.isoformat(" ", "microseconds")
        case date():
            return moment.year, moment.isoformat()
        case time():
            return 0, moment.isoformat("microseconds")
    if year := re.match(r"\d{4,}(?=-)", moment):
        return int(year[0]) * (-1 if moment.endswith("BC") else 1), moment
    return -inf if moment.startswith("-") else inf, moment


def shown(value: Any) -> Any:
    """Return a column's value, as the driver returns it, as a JSON value.

    Bytes become an object with base64, times ISO 8601 text, and other types text.
    ``Column.stored`` is the inverse.
    """
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            return str(value)
        case bytes() | bytearray() | memoryview():
            return {_BYTES: base64.b64encode(bytes(value)).decode()}
        case datetime():
            return value.isoformat(" ", "microseconds")
        case date() | time():
            return value.isoformat()
        case _:
            return str(value)


UNKNOWN_TIME = "1970-01-02T00:00:00.000000+00:00"
"""The time to store for a message without a time, in a column that does not allow NULL.

1 January is too early: MySQL's TIMESTAMP begins then, in UTC, and the server's zone shifts times.
"""


class Column(NamedTuple):
    """A column of a table that the configuration maps to memories."""

    name: str
    type: TypeEngine[Any]
    typed: bool
    """True if the driver accepts only values of the column's type; False for SQLite."""
    nullable: bool = True
    default: bool = False
    """True if the database has a default value for the column."""
    default_sql: str = ""
    """The SQL of the default value; empty without one."""
    computed: bool = False
    """True if the database computes every value and accepts none."""
    numbered: bool = False
    """True if the database numbers the rows, and lets no statement change a number."""
    form: TextForm = TextForm()
    """The form in which the driver exchanges texts."""

    @property
    def filled(self) -> bool:
        """True if new rows get a value in any case: the column is NOT NULL or has a default."""
        return self.default or not self.nullable

    @property
    def is_integer(self) -> bool:
        return isinstance(self.type, Integer)

    @property
    def is_fraction(self) -> bool:
        """True if the column holds numbers with a fraction."""
        return isinstance(self.type, Numeric | Float)

    def refusal(self, name: str) -> str:
        """Return why the column cannot store the session name ``name``; empty if it can.

        A column of UUIDs or integers stores only names in the usual notation of its type.
        """
        if isinstance(self.type, Uuid):
            kind, example = "UUIDs", "a UUID in lower case, with hyphens"
        elif self.is_integer:
            kind, example = "numbers", "an integer"
        else:
            return ""
        try:
            plain = str(UUID(name)) if isinstance(self.type, Uuid) else str(int(name))
        except ValueError:
            plain = ""
        return "" if plain == name else f"its sessions are {kind}, and {name!r} is not {example}"

    @property
    def is_json(self) -> bool:
        return isinstance(self.type, JSON)

    @property
    def is_text(self) -> bool:
        """True if the column holds text, so that the driver accepts a string as is."""
        return isinstance(self.type, String) and not isinstance(self.type, LargeBinary)

    @property
    def is_comparable(self) -> bool:
        """True if values that ``stored`` returns compare in Python as in the database."""
        return self.is_time or not self.form.type

    @property
    def is_time(self) -> bool:
        return isinstance(self.type, DateTime | Date | Time)

    @property
    def is_converted(self) -> bool:
        """True if ``read`` may change a selected value."""
        return self.typed and (self.is_time or self.form.selected != "{}")

    def selected(self, expression: str) -> str:
        """Return SQL that selects a value exactly; ``read`` converts the value."""
        return self.form.selected.format(expression)

    def read(self, value: Any) -> Any:
        """Convert a value that the SQL of ``selected`` has read to a value as from ``stored``."""
        if not self.is_converted:
            return value
        if isinstance(value, str) and self.is_time:
            try:
                return self._time(value)
            except (ValueError, OverflowError):
                return FarTime(value)
        return _single(value) if isinstance(value, float) else value

    def placed(self, place: str) -> str:
        """Return SQL for a result of ``bound``; ``place`` is its placeholder."""
        return f"CAST(CAST({place} AS TEXT) AS {self.form.type})" if self.form.type else place

    def bound(self, value: Any) -> Any:
        """Convert a result of ``stored`` to the parameter for the SQL of ``placed``."""
        return str(value) if self.form.type and value is not None else value

    def moment(self, moment: datetime) -> Any:
        """Return the value to pass to the driver for ``moment``, a time in UTC without a zone.

        For a column of fractional numbers, the value is the number of seconds since 1970.
        """
        if self.is_fraction:
            return self.stored(moment.replace(tzinfo=UTC).timestamp())
        if self.typed and isinstance(self.type, DateTime):
            return moment.replace(tzinfo=UTC) if self.type.timezone else moment
        return shown(moment)

    def stored(self, value: Any) -> Any:
        """Return the value to pass to the driver for a JSON value, as the function ``shown`` made.

        Raises:
            ValueError: the column cannot hold the value.
        """
        if self.form.type and not isinstance(value, str | date | None):
            raise ValueError(f"the column {visible(self.name)!r} takes texts")
        if isinstance(value, dict) and value.keys() == {_BYTES}:
            return base64.b64decode(value[_BYTES])
        if value is None or not self.typed:
            return value
        match self.type:
            case DateTime() | Date() | Time() if isinstance(value, str):
                try:
                    return self._time(value)
                except (ValueError, OverflowError) as error:
                    cut = isinstance(self.type, Date) and ":" in value
                    if cut or not _FAR.fullmatch(value):
                        raise ValueError(str(error)) from error
                    return FarTime(value)
            case Integer() if isinstance(value, str):
                return int(value)
            case Float():
                return float(value)
            case Numeric():
                return Decimal(str(value))
            case POSTGRESQL_JSON() if isinstance(value, str) and not isinstance(self.type, JSONB):
                return value.encode()
            case LargeBinary() if isinstance(value, str):
                return value.encode()
            case Uuid() if isinstance(value, str):
                return UUID(value)
        return value

    def _time(self, text: str) -> Any:
        """Return a time for the driver.

        Raises:
            ValueError, OverflowError: Python has no such time.
        """
        found: Any
        match self.type:
            case DateTime():
                found = datetime.fromisoformat(text)
                if self.type.timezone or found.tzinfo:
                    found = found.astimezone(UTC)
                naive = found.replace(tzinfo=None)
                found = found if self.type.timezone else naive
            case Date():
                found = naive = date.fromisoformat(text)
            case _:
                found = naive = time.fromisoformat(text)
                if text.startswith("24:"):  # midnight in newer versions of Python
                    return FarTime(text)
        return FarTime(text) if self.form.type and naive in _LIMITS else found


def columns_of(database: Database, table: str, connection: Connection) -> dict[str, Column]:
    """Return the columns of a table by name."""
    typed, forms = database.syntax.typed, database.text_forms(connection, table)
    defaults = database.missed_defaults(connection, table)
    return {
        one["name"]: Column(
            *(one["name"], one["type"], typed, one["nullable"]),
            default=one["default"] is not None
            or bool(one.get("identity"))
            or one["name"] in defaults,
            default_sql=one["default"] or defaults.get(one["name"], ""),
            computed=bool(one.get("computed")),
            numbered=_numbers(one.get("identity")),
            form=forms.get(one["name"], TextForm()),
        )
        for one in inspect(connection).get_columns(table)
    }


def _numbers(identity: Any) -> bool:
    return bool(identity and identity.get("always"))


async def filled_zone(
    database: Database, connection: AsyncConnection, column: Column
) -> tzinfo | None:
    """Return the zone of a column's times without a zone, as the database fills the column.

    None if programs fill the column.
    """
    default = column.default_sql.lower()
    if found := _AT_ZONE.search(column.default_sql):
        return zone_named(found[1].upper()) or zone_named(found[1])
    if "utc_timestamp" in default:
        return UTC
    fills = _NOW.search(default) and "'localtime'" not in default  # SQLite's is the program's
    if fills or type(column.type).__name__ == database.zoned_type:
        return await database.time_zone(connection)
    return None


def types_of(
    columns: Mapping[str, Column], names: Sequence[str], rows: Sequence[Sequence[Any]]
) -> dict[str, str]:
    """Return the ``TextForm.type`` of each column, by name, that has a text in one of the rows.

    ``rows`` have the values of the columns ``names``.
    """
    return {
        name: columns[name].form.type
        for at, name in enumerate(names)
        if name in columns and columns[name].form.type and any(isinstance(r[at], str) for r in rows)
    }


async def find_unrestorable(
    database: Database, table: str, columns: Iterable[Column], where: str, values: dict[str, Any]
) -> str:
    """Name a column with a value that cannot be inserted again; empty if there is none.

    ``where`` is a condition on the rows of the table, which it calls ``m``.  ``values`` are the
    parameters of the condition.
    """
    quoted = database.syntax.quoted
    doubtful = [
        one for one in columns if not one.computed and not (one.is_comparable and one.form.writable)
    ]
    if not doubtful:
        return ""
    column = doubtful[0]
    try:
        async with database.snapshot() as connection:
            for column in doubtful:
                name = quoted(column.name)
                text = column.selected(name)
                test = f"{name} IS NOT NULL"
                if column.form.writable:
                    test = f"{text} <> CAST({column.placed(text)} AS TEXT)"
                sql = f"SELECT 1 FROM {quoted(table)} m WHERE {where} AND {test} LIMIT 1"
                if await database.fetch_all(connection, sql, values):
                    break
            else:
                return ""
    except Lost:
        raise
    except (BadData, Unavailable):  # the type has no input
        pass
    kind = column.form.type or str(column.type)
    if not column.form.writable:
        kind += ", without the right to INSERT"
    return f"the column {visible(column.name)!r} ({kind}) of the table {visible(table)!r}"


def _single(value: float) -> float:
    """Return the shortest number that the database stores as ``value``, in single precision."""
    for digits in range(6, 9):
        found = float(f"{value:.{digits}g}")
        if abs(found) <= _LARGEST and struct.pack("f", found) == struct.pack("f", value):
            return found
    return value


def after(moment: Any) -> Any:
    """Return a time plus a microsecond, in the same form: a datetime, seconds, or ISO text.

    Raises:
        ValueError, TypeError, OverflowError: the value is not a time, or the last possible time.
    """
    if isinstance(moment, datetime):
        return moment + timedelta(microseconds=1)
    if isinstance(moment, float | Decimal):  # seconds
        return type(moment)(Decimal(str(moment)) + Decimal("1e-6"))
    return (datetime.fromisoformat(moment) + timedelta(microseconds=1)).isoformat(
        " ", "microseconds"
    )


class TimeFormat(NamedTuple):
    """The format of the times in a column, derived from its type and a sample value."""

    unit: int = 0
    """For times as numbers: the units per second, such as 1000 for milliseconds; otherwise 0."""
    whole: bool = False
    """True if the times are integers."""
    zone: bool = False
    """True if a time includes its zone."""
    separator: str = " "
    """The character between date and time of a text."""
    local: tzinfo | None = None
    """The zone of times that include no zone; None for the local zone of this machine."""
    exact: bool = False
    """True if the driver accepts and returns ``datetime`` objects."""

    @classmethod
    def of(cls, column: Column, sample: Any, local: tzinfo | None = None) -> TimeFormat:
        """Return the format of a column's times.

        ``sample`` is a value of the column, None if the column has no value.  ``local`` is the zone
        of times that include no zone; None for the local zone of this machine.
        """
        if column.typed and isinstance(column.type, DateTime):
            return cls(zone=column.type.timezone, local=local, exact=True)
        if isinstance(sample, str) and _NUMBER.fullmatch(sample):
            sample = float(sample)
        if isinstance(sample, int | float) and not isinstance(sample, bool):
            return cls(_unit(sample), isinstance(column.type, Integer))
        if sample is None and isinstance(column.type, Integer | Numeric | Float):
            whole = isinstance(column.type, Integer)
            return cls(1000 if isinstance(column.type, BigInteger) else 1, whole)
        if isinstance(sample, str) and len(sample) > len("2026-11-23"):
            zone = bool(re.search(r"(Z|[+-]\d\d:?\d\d)$", sample))
            return cls(zone=zone, separator=sample[10], local=local)
        return cls(local=local)

    @property
    def is_fixed(self) -> bool:
        """True if the format depends neither on a sample value nor on a time zone."""
        return self.exact and (self.zone or self.local is UTC)

    def read(self, value: Any) -> str | None:
        """Return a column's value as an ISO 8601 time in UTC.

        None is returned for NULL and for ``UNKNOWN_TIME``.  A value that is not a time is returned
        as unchanged text.
        """
        if value is None:
            return None
        moment: datetime | None = None
        try:
            if type(value) is float and abs(value) < (unit := self.unit or 1) * _MILLISECONDS:
                return _known(datetime.fromtimestamp(value / unit, UTC))
            if isinstance(value, str) and _NUMBER.fullmatch(value):
                value = Decimal(value)
            match value:
                case datetime():
                    moment = value
                case int() | float() | Decimal():
                    unit = self.unit or 1
                    if abs(float(value)) >= unit * _MILLISECONDS:  # a unit other than the sample's
                        unit = _unit(value)
                    seconds, rest = divmod(value, unit)
                    fraction = int(rest * 1_000_000 // unit) if isinstance(value, int) else 0
                    if isinstance(value, int):
                        moment = datetime.fromtimestamp(int(seconds), UTC)
                        moment = moment.replace(microsecond=fraction)
                    else:
                        moment = datetime.fromtimestamp(float(value) / unit, UTC)
                case str():
                    moment = datetime.fromisoformat(value.strip())
        except (ValueError, ArithmeticError, OSError):
            return str(value)
        if moment is None:
            return str(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=self.local)
        try:
            return _known(moment.astimezone(UTC))
        except (ValueError, OverflowError):  # the first or the last day that Python knows
            return str(value)

    def write(self, text: str | None) -> Any:
        """Return the column's value for a text that ``read`` returned; None for None.

        Raises:
            ValueError: the text is not a time, and the column holds only times.
        """
        if text is None:
            return None
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            if self.unit or self.exact:
                raise
            return text
        if self.unit and not self.whole:
            return moment.timestamp() * self.unit
        moment = moment.astimezone(UTC)
        if self.unit:
            whole = int(moment.replace(microsecond=0).timestamp())
            return whole * self.unit + moment.microsecond * self.unit // 1_000_000
        if not self.zone:
            moment = moment.astimezone(self.local).replace(tzinfo=None)
        return moment if self.exact else moment.isoformat(self.separator)


def _known(moment: datetime) -> str | None:
    """Return a time as ISO 8601 text; None for ``UNKNOWN_TIME``."""
    found = moment.isoformat(timespec="microseconds")
    return None if found == UNKNOWN_TIME else found


def _unit(value: Any) -> int:
    size = abs(value)
    if size >= _NANOSECONDS:
        return 10**9
    if size >= _MICROSECONDS:
        return 10**6
    return 10**3 if size >= _MILLISECONDS else 1
