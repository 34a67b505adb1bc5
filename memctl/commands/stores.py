"""``memctl stores``: lists the kinds of store; detects tables of messages in a database."""

from __future__ import annotations

import re
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from msgspec import UNSET
from rich.console import Group
from rich.text import Text

from memctl.commands._context import Run
from memctl.commands._options import takes_options
from memctl.commands._parameters import argument
from memctl.commands._run import wait_for
from memctl.errors import NotFound, UsageError
from memctl.layouts.agents import installed
from memctl.layouts.foreign import ForeignFormat
from memctl.location import Location, visible
from memctl.output import tables
from memctl.output.printout import Printout
from memctl.output.terminal import Output
from memctl.registry import SQL_KINDS, features_of, kinds, spec_of
from memctl.reports.stores import AgentRow, KindRow, StoresReport, TableRow, TablesReport
from memctl.store import OpenMode
from memctl.text.numbers import count

if TYPE_CHECKING:
    from rich.console import RenderableType

    from memctl.stores.tables.detect import Proposal


class Action(StrEnum):
    """An action of ``memctl stores`` besides listing the kinds."""

    DETECT = "detect"


@takes_options
def stores(
    run: Run,
    action: Annotated[
        Action | None, argument("detect", "Look for tables of messages in a SQL database.")
    ] = None,
    store: Annotated[str | None, argument("STORE", "URL, path or alias of the database.")] = None,
) -> None:
    """List the kinds of store, or the tables of messages in a SQL database.

    Below the kinds are the coding agents that have kept sessions on this machine.

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
    here = [AgentRow(f"{one.kind}:", str(one.folder), one.bytes()) for one in installed()]
    output.printout = Printout(lambda: StoresReport(found, here), lambda: _drawn(found, here))
    output.emit()


def _drawn(found: list[KindRow], here: list[AgentRow]) -> RenderableType:
    rows = ((row.kind, row.written_as, row.what, _able(row)) for row in found)
    parts = [tables.kinds(rows)]
    if here:
        parts += [Text(), tables.agents((row.store, row.bytes, row.folder) for row in here)]
    return Group(*parts)


def _detect(run: Run, location: Location) -> None:
    base = location.kind.partition("-")[0]
    if base not in SQL_KINDS:
        raise UsageError(
            f"{location.label} is not a SQL database", "name a SQLite file, PostgreSQL or MySQL"
        )
    proposals, own, others, texts = wait_for(_proposals(replace(location, kind=base)))
    if "owner" in location.options:
        for one in proposals:
            if one.names_user:
                one.reasons.append("owner: left out, because a column names the user")
    found = [
        TableRow(
            one.table,
            one.rows,
            one.layout,
            one.columns,
            one.reasons,
            one.toml(_alias(one, location, several=len(proposals) > 1), location.label),
            one.dialect or UNSET,
            UNSET if one.encoding == "" else one.encoding,
            one.live or UNSET,
            one.summary or UNSET,
        )
        for one in proposals
    ]
    from memctl.layouts.sql import named_tables

    run.output.printout = Printout(
        lambda: TablesReport(location.label, found),
        lambda: Text("\n\n".join(map(_shown, found))) if found else None,
    )
    for name, other in others.items():
        if found or own:
            run.output.warn(str(other.refusal(f"the table {visible(name)!r}")))
        else:
            raise other.refusal(location.label)
    if own and not found:
        raise NotFound(
            f"{location.label}: no table to map was recognized",
            f"its tables are those of {', '.join(sorted(own))}: use it as it is",
        )
    if not found:
        raise NotFound(
            f"{location.label}: no table of messages was recognized"
            + (f"; these have text columns: {named_tables(texts)}" if texts else ""),
            "map one by hand if a row is a message: docs/stores/tables.md; write others as OpenAI "
            "chat messages (.jsonl)",
        )
    run.output.finish()


async def _proposals(
    location: Location,
) -> tuple[list[Proposal], set[str], dict[str, ForeignFormat], list[str]]:
    """Search an SQL database for tables of messages.

    Return four results: proposed mappings of tables, names of layouts that need no mapping, formats
    that memctl recognizes and does not read, by their tables.  Without all these, the fourth is the
    tables with columns of texts.

    Raises:
        Uninitialised: the database has no tables.
    """
    from memctl.engines.sql.database import make_database
    from memctl.layouts.sql import foreign_tables, own_layouts, refuse_empty
    from memctl.stores.tables.detect import detect, text_tables

    database = make_database(location, location.label)
    await database.start(OpenMode.READ, _nothing)
    try:
        await database.run(partial(refuse_empty, location.label))
        found, own = await database.run(detect), await database.run(own_layouts)
        others = await database.run(foreign_tables)
        texts = [] if found or own or others else await database.run(text_tables)
        return found, own, others, texts
    finally:
        await database.close()


async def _nothing() -> None:
    """Prepare no tables, because the database is searched as it is."""


def _alias(proposal: Proposal, location: Location, *, several: bool) -> str:
    """Return a proposed name for a store; of ``several``, the name of the table is a part."""
    name = location.path.stem or urlsplit(location.url).path.strip("/")
    name += f"-{proposal.table}" if several else ""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")
    return plain or proposal.layout


def _shown(table: TableRow) -> str:
    reasons = "".join(f"  {visible(reason)}\n" for reason in table.reasons)
    return f"{visible(table.table)}: {count(table.rows, 'row')}\n{reasons}\n{table.toml}"


def _row(kind: str, output: Output) -> KindRow:
    try:
        spec = spec_of(kind)
    except UsageError as error:  # a plugin that cannot be loaded
        output.warn(error.message)
        return KindRow(
            kind, f"{kind}://..., PATH.{kind}", "a plugin", [], missing=error.hint or UNSET
        )
    try:
        features = features_of(kind)
        marks = None if features.marks is None else sorted(features.marks)
        return KindRow(kind, spec.syntax, spec.summary, features.capabilities(), marks)
    except UsageError as error:
        return KindRow(kind, spec.syntax, spec.summary, [], missing=error.hint or UNSET)


def _able(row: KindRow) -> str:
    able = [*row.capabilities]
    if isinstance(row.marks, list):
        able.append(f"only the mark {row.marks[0]}" if row.marks else "no marks")
    return ", ".join(able) or row.missing or ""
