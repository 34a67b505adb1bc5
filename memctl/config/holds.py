"""The holds of the configuration file, ``[[hold]]``."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Annotated

from msgspec.structs import asdict

from memctl.config import Config
from memctl.errors import UsageError
from memctl.holds import Hold
from memctl.text.toml import Name, Table, Text, means, read_table
from memctl.text.words import errors_at


class HoldTable(Table, kw_only=True, frozen=True):
    """A hold as the file has it."""

    reason: Text
    user: Name | None = None
    session: Name | None = None
    store: Name | None = None
    until: Annotated[date, means("a date", 'KEY = "2027-06-30"')] | None = None


def read_holds(config: Config) -> list[Hold]:
    """Return the holds of the configuration, in the order of the file, ended holds too.

    The id of a hold is made from its content.

    Raises:
        UsageError: a table is not a valid hold.
    """
    return [_hold(config, f"hold {number}", table) for number, table in enumerate(config.holds, 1)]


def _hold(config: Config, place: str, table: object) -> Hold:
    found = read_table(config.path, place, table, HoldTable)
    if found.user is found.session is found.store is None:
        raise UsageError(
            f"{config.path}: {place} names no user, session or store",
            'write user = "NAME", for example',
        )
    hold = Hold(**asdict(found), place=_meant(config, place, found.store))
    return replace(hold, id=hold.digest)


def _meant(config: Config, place: str, store: str | None) -> str:
    """Return the URL or path of a store, which may be a name in the configuration; empty for None.

    Raises:
        UsageError: there is no such store.
    """
    if store is None:
        return ""
    with errors_at(f"{config.path}: {place}.store"):
        alias = config.stores.get(store)
        return (config.locate(store, {}) if alias is None else alias.location()).label
