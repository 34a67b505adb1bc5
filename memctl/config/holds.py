"""The holds of the configuration file, ``[[hold]]``."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

from memctl.config import Config
from memctl.config.checks import refuse_unknown
from memctl.errors import UsageError
from memctl.holds import Hold

_TEXTS = ("user", "session", "store")
_KEYS = (*_TEXTS, "reason", "until")


def read_holds(config: Config) -> list[Hold]:
    """Return the holds of the configuration, in the order of the file, ended holds too.

    The id of a hold is made from its content.

    Raises:
        UsageError: a table is not a valid hold.
    """
    return [_hold(config, f"hold {number}", table) for number, table in enumerate(config.holds, 1)]


def _hold(config: Config, place: str, table: dict[str, Any]) -> Hold:
    path = config.path
    refuse_unknown(path, f"{place}.", table, _KEYS)
    for key in (*_TEXTS, "reason"):
        if not isinstance(table.get(key, ""), str):
            raise UsageError(f"{path}: {place}.{key} is not a text", f'write {key} = "..."')
    if not any(key in table for key in _TEXTS):
        raise UsageError(
            f"{path}: {place} names no user, session or store", 'write user = "NAME", for example'
        )
    if not table.get("reason", "").strip():
        raise UsageError(f"{path}: {place} has no reason", 'write reason = "..."')
    store = table.get("store")
    hold = Hold(
        *(table["reason"], table.get("user"), table.get("session"), store),
        until=_day(path, place, table.get("until")),
        place="" if store is None else _meant(config, place, store),
    )
    return replace(hold, id=hold.digest)


def _day(path: Path, place: str, value: Any) -> date | None:
    if value is None:
        return None
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    try:
        return date.fromisoformat(value)
    except (TypeError, ValueError):
        raise UsageError(
            f"{path}: {place}.until is not a date", 'write until = "2027-06-30"'
        ) from None


def _meant(config: Config, place: str, store: str) -> str:
    """Return the URL or path of a store, which may be a name in the configuration.

    Raises:
        UsageError: there is no such store.
    """
    try:
        alias = config.stores.get(store)
        return (config.locate(store, {}) if alias is None else alias.location()).label
    except UsageError as error:
        raise UsageError(f"{config.path}: {place}.store: {error.message}", error.hint) from error
