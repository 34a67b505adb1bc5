"""The reports of ``stores``."""

from __future__ import annotations

from msgspec import UNSET, field

from memctl.reports.report import Count, Maybe, Report, Row


class KindRow(Row):
    """A kind of store."""

    kind: str
    written_as: str
    what: str
    capabilities: list[str]
    marks: Maybe[list[str] | None] = UNSET
    """The marks that messages can have; null for any mark."""
    missing: Maybe[str] = UNSET
    """How to install its driver."""


class AgentRow(Row):
    """A coding agent that has kept sessions on this machine."""

    store: str
    """The name of its store for the command line."""
    folder: str
    bytes: Count
    """The bytes of its sessions."""


class StoresReport(Report):
    """The kinds of store, and the coding agents on this machine."""

    lists = ("stores",)
    stores: list[KindRow]
    agents: list[AgentRow] = field(default_factory=list)


class TableRow(Row):
    """A table of messages in a database."""

    table: str
    rows: Count
    layout: str
    """The value of ?layout= for the table: 'table', or a framework."""
    columns: dict[str, str | list[str]]
    """The mapping: what each column is."""
    reasons: list[str]
    toml: str
    """The lines of the configuration that name the table."""
    dialect: Maybe[str] = UNSET
    """The framework whose format the contents have, if any."""
    content_encoding: Maybe[str | None] = UNSET
    """Whether a text is stored as plain text (text) or as a JSON string (json); null if no row
    shows which."""
    live: Maybe[str] = UNSET
    """The condition of the rows that the program reads, if a column seems to say it."""
    summary: Maybe[str] = UNSET
    """The condition of the rows that are summaries, if a column seems to say it."""


class TablesReport(Report, tag="memctl/stores/1"):
    """The tables of messages in a database (stores detect)."""

    lists = ("tables",)
    store: str
    """The database, without its password."""
    tables: list[TableRow]
