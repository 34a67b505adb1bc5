"""``memctl stores``: lists the kinds of store; detects tables of messages in a database."""

from __future__ import annotations

import re
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.text import Text

from memctl.commands._context import Run
from memctl.commands._options import takes_options
from memctl.commands._run import wait_for
from memctl.errors import NotFound, UsageError
from memctl.foreign import ForeignFormat
from memctl.location import Location, visible
from memctl.numbers import count
from memctl.output import tables
from memctl.output.report import Report
from memctl.output.terminal import Output
from memctl.registry import SQL_KINDS, features_of, kinds, spec_of
from memctl.store import OpenMode

if TYPE_CHECKING:
    from memctl.stores.tables.detect import Proposal


class Action(StrEnum):
    """An action of ``memctl stores`` besides listing the kinds."""

    DETECT = "detect"


@takes_options
def stores(
    run: Run,
    action: Annotated[
        Action | None,
        typer.Argument(metavar="detect", help="Look for tables of messages in a SQL database."),
    ] = None,
    store: Annotated[
        str | None, typer.Argument(metavar="STORE", help="URL, path or alias of the database.")
    ] = None,
) -> None:
    """List the kinds of store, or the tables of messages in a SQL database.

    memctl help stores explains how to write each kind.

    Examples:
      memctl stores
      memctl stores --json
      memctl stores detect app.db
    """
    if action is Action.DETECT:
        if store is None:
            raise UsageError("detect names no database", "write: memctl stores detect URL")
        _detect(run, run.locate(store))
        return
    output = run.output
    found = [_row(kind, output) for kind in kinds()]
    output.report = Report(
        "stores",
        lambda: {"stores": found},
        lambda: found,
        lambda: tables.kinds(
            (row["kind"], row["written_as"], row["what"], _able(row)) for row in found
        ),
    )
    output.emit()


def _detect(run: Run, location: Location) -> None:
    base = location.kind.partition("-")[0]
    if base not in SQL_KINDS:
        raise UsageError(
            f"{location.label} is not a SQL database", "name a SQLite file, PostgreSQL or MySQL"
        )
    proposals, own, others = wait_for(_proposals(replace(location, kind=base)))
    url = location.label.partition("?")[0]
    found = [
        {
            "table": one.table,
            "rows": one.rows,
            "layout": one.layout,
            "columns": one.columns,
            "reasons": one.reasons,
            "toml": one.toml(_alias(one, location), url),
        }
        | ({"dialect": one.dialect} if one.dialect else {})
        | ({} if one.encoding == "" else {"content_encoding": one.encoding})
        for one in proposals
    ]
    run.output.report = Report(
        "stores",
        lambda: {"store": location.label, "tables": found},
        lambda: found,
        lambda: Text("\n\n".join(map(_shown, found))),
    )
    run.output.finish()
    if not (found or own) and others:
        raise others[0].refusal(location.label)
    if not found:
        raise NotFound(
            f"{location.label} has no table that needs a mapping",
            f"its tables are those of {', '.join(sorted(own))}: use it as it is"
            if own
            else "map one by hand: see docs/stores/tables.md",
        )


async def _proposals(
    location: Location,
) -> tuple[list[Proposal], set[str], list[ForeignFormat]]:
    """Search an SQL database for tables of messages.

    Return three results: proposed mappings of tables, names of layouts that need no mapping, and
    formats that memctl recognizes and does not read.
    """
    from memctl.engines.sql.database import make_database
    from memctl.layouts.sql import foreign_tables, own_layouts
    from memctl.stores.tables.detect import detect

    database = make_database(location, location.label)
    await database.start(OpenMode.READ, _nothing)
    try:
        others = await database.run(foreign_tables)
        return (
            *(await database.run(detect), await database.run(own_layouts)),
            list(others.values()),
        )
    finally:
        await database.close()


async def _nothing() -> None:
    """Prepare no tables, because the database is searched as it is."""


def _alias(proposal: Proposal, location: Location) -> str:
    """Return a proposed name for a store."""
    name = location.path.stem or urlsplit(location.url).path.strip("/")
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")
    return plain or proposal.layout


def _shown(table: dict[str, Any]) -> str:
    rows = f"{count(table['rows'], 'row')}"
    reasons = "".join(f"  {visible(reason)}\n" for reason in table["reasons"])
    return f"{visible(table['table'])}: {rows}\n{reasons}\n{table['toml']}"


def _row(kind: str, output: Output) -> dict[str, Any]:
    try:
        spec = spec_of(kind)
    except UsageError as error:  # a plugin that cannot be loaded
        output.warn(error.message)
        row = {"kind": kind, "written_as": f"{kind}://..., PATH.{kind}", "what": "a plugin"}
        return row | {"capabilities": [], "missing": error.hint}
    row = {"kind": kind, "written_as": spec.syntax, "what": spec.summary}
    try:
        features = features_of(kind)
        marks = None if features.marks is None else sorted(features.marks)
        return row | {"capabilities": features.capabilities(), "marks": marks}
    except UsageError as error:
        return row | {"capabilities": [], "missing": error.hint}


def _able(row: dict[str, Any]) -> str:
    able = [*row["capabilities"]]
    if (marks := row.get("marks")) is not None:
        able.append(f"only the mark {marks[0]}" if marks else "no marks")
    return ", ".join(able) or row.get("missing") or ""
