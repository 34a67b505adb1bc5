"""The mapping described by the options of a URL."""

from __future__ import annotations

from collections.abc import Mapping as Map
from urllib.parse import unquote

from msgspec.structs import replace

from memctl.dialects.langchain import LangChainJs
from memctl.dialects.rows import (
    COLUMN_ROLES,
    Flag,
    RoleContent,
    RowDialect,
)
from memctl.errors import UsageError
from memctl.location import visible
from memctl.stores.tables.mapping import CALL_COLUMNS, OPTIONAL_FIELDS, Mapping
from memctl.stores.tables.presets import PRESETS
from memctl.text.values import time_zone

ENCODINGS = ("text", "json")
MAPPED: dict[str, type[RowDialect]] = {
    RoleContent.name: RoleContent,
    **{type(one.dialect).name: type(one.dialect) for one in PRESETS.values()},
    LangChainJs.name: LangChainJs,
}
"""The valid dialects for the contents of a mapped table."""


def mapping_of(options: Map[str, str]) -> Mapping:
    """Return the mapping that the options of a URL describe.

    Raises:
        UsageError: an option is missing, unknown or not valid.
    """
    layout = options.get("layout", "table")
    user = options.get("owner", "")
    if layout in PRESETS:
        preset = replace(PRESETS[layout], user=user, app_name=options.get("app", ""))
        if "app" in options and not preset.app:
            raise UsageError(f"?layout={layout} knows no applications", "leave out app=")
        if user and "user" in preset.columns:
            raise UsageError(
                f"?layout={layout} names the user of each session",
                "leave out owner=; for the target of a copy, write owner= at the source",
            )
        for name in ("columns", "content_encoding", "live", "summary", "tz"):
            if name in options:
                what = "times" if name == "tz" else "columns"
                raise UsageError(f"?layout={layout} knows its {what}", f"leave out {name}=")
        return replace(preset, table=options["table"]) if "table" in options else preset
    table = options.get("table", "")
    if not table:
        raise UsageError(
            "?layout=table names no table", "add &table=NAME, or see: memctl stores detect"
        )
    columns = _columns(options.get("columns", ""))
    for needed in "session", "content":
        if needed not in columns:
            raise UsageError(
                f"the mapping of the table {visible(table)!r} names no column for {needed}",
                f'add {needed} = "COLUMN" to columns, or see: memctl stores detect',
            )
    if user and "user" in columns:
        raise UsageError("the mapping has a column for user, and an owner", "leave out one of them")
    dialect = options.get("dialect", RoleContent.name)
    fields = frozenset(name for role, name in OPTIONAL_FIELDS.items() if role in columns)
    if dialect not in MAPPED:
        raise UsageError(
            f"dialect={visible(dialect)} is unknown", f"known: {', '.join(sorted(MAPPED))}"
        )
    encoding = options.get("content_encoding", "")
    if encoding and dialect != RoleContent.name:
        raise UsageError(f"dialect={dialect} knows its contents", "leave out content_encoding=")
    if encoding and encoding not in ENCODINGS:
        raise UsageError(
            f"content_encoding={visible(encoding)} is unknown", f"known: {', '.join(ENCODINGS)}"
        )
    if dialect != RoleContent.name and (known := sorted(CALL_COLUMNS.keys() & columns.keys())):
        raise UsageError(f"dialect={dialect} has calls in its contents", f"leave out {known[0]}")
    order = tuple(name for name in columns.pop("order", "").split(";") if name)
    rows = MAPPED[dialect](fields, orders_by_time=order[:1] == (columns.get("time"),))
    zone = time_zone(options["tz"]) if "tz" in options else None
    if (live := _flag(options, "live", columns)) is not None:
        rows = rows.flagged(live)
    if (summary := _flag(options, "summary", columns)) is not None:
        rows = rows.summed(summary)
    return Mapping(table, columns, order, rows, user, encoding=encoding, zone=zone)


def _flag(options: Map[str, str], name: str, columns: Map[str, str]) -> Flag | None:
    """Return the condition in an option of a URL; None without the option.

    Raises:
        UsageError: the text is no condition, or names one of ``columns``.
    """
    if (condition := options.get(name)) is None:
        return None
    flag = Flag.parse(condition)
    if flag is None or flag.column in columns.values():
        example = "kind = 'summary'" if name == "summary" else "state = 'kept'"
        raise UsageError(
            f"{name}={visible(condition)} is no condition of a further column",
            f'write {name} = "active = 1", "{example}" or "deleted_at is null"',
        )
    return flag


def _columns(text: str) -> dict[str, str]:
    """Parse column names by role, such as ``session:session_id,content:text``.

    In a column name, ``,`` ``;`` and ``%`` are quoted as in a URL.  ``;`` separates the columns of
    the role ``order``.

    Raises:
        UsageError: the text is malformed, or a role is not in COLUMN_ROLES.
    """
    found: dict[str, str] = {}
    for pair in filter(None, text.split(",")):
        role, colon, column = pair.partition(":")
        if role not in COLUMN_ROLES:
            raise UsageError(
                f"columns: {visible(role)!r} is nothing that a column can be",
                f"known: {', '.join(COLUMN_ROLES)}",
            )
        if not colon or not column:
            raise UsageError(
                f"columns: {visible(role)} names no column",
                "write columns=session:session_id,content:content",
            )
        found[role] = unquote(column)
    return found
