"""``memctl stores``: the kinds of store, and what each can hold."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

from memctl import plugins
from memctl.commands._context import choose_format, this_run
from memctl.commands._options import FormatOption, JsonOption, build
from memctl.errors import UsageError
from memctl.output import tables
from memctl.output.report import Report
from memctl.output.terminal import Format, Output
from memctl.registry import KINDS, store_class

WRITTEN_AS = {
    "sqlite": ("sqlite:///PATH, PATH.db .sqlite .sqlite3", "SQL memory in a SQLite file"),
    "postgresql": ("postgresql://USER@HOST/DATABASE", "SQL memory in PostgreSQL"),
    "mysql": ("mysql://USER@HOST/DATABASE", "SQL memory in MySQL or MariaDB"),
    "redis": ("redis:// rediss:// unix://, ?prefix= ?ttl=", "RedisMemory"),
    "redis-session": ("redis://...?layout=session", "RedisSession's states"),
    "state": ("PATH.json", "a state_dict, or one session state"),
    "sessions": ("a folder", "JSONSession's states"),
    "archive": (".ndjson .ndjson.gz .ndjson.zst", "a memctl archive"),
}


def stores(
    context: typer.Context,
    format_: FormatOption = Format.TABLE,
    json: JsonOption = False,
) -> None:
    """List the kinds of store and what each can hold."""
    output = this_run(context).output
    choose_format(output, format_, json=json)
    found = [_kind(kind) for kind in KINDS]
    more = [kind for kind in plugins.names(plugins.STORES) if kind not in KINDS]
    found += [_plugin(kind, output) for kind in more]
    output.report = Report(
        "stores",
        lambda: {"stores": found},
        lambda: found,
        lambda: tables.kinds(
            (row["kind"], row["written_as"], row["what"], _able(row)) for row in found
        ),
    )
    output.emit()


def _kind(kind: str) -> dict[str, Any]:
    written, what = WRITTEN_AS[kind]
    row: dict[str, Any] = {"kind": kind, "written_as": written, "what": what}
    try:
        return row | {"capabilities": store_class(kind).features.capabilities()}
    except UsageError as error:
        return row | {"capabilities": [], "missing": error.hint}


def _plugin(kind: str, output: Output) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": kind, "written_as": f"{kind}://..., PATH.{kind}"}
    try:
        found = store_class(kind)
    except UsageError as error:
        output.warn(error.message)
        return row | {"what": "a plugin", "capabilities": [], "missing": error.hint}
    what = (found.__doc__ or "a plugin").strip().splitlines()[0]
    return row | {"what": what.rstrip("."), "capabilities": found.features.capabilities()}


def _able(row: dict[str, Any]) -> str:
    return ", ".join(row["capabilities"]) or row.get("missing") or ""


def command() -> TyperCommand:
    """The parser of this command."""
    return build(stores, "stores")
