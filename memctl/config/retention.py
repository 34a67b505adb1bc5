"""The policies of retention in the configuration file, ``[[retention]]``."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any

from memctl.config import Config
from memctl.config.checks import nearest, refuse_unknown
from memctl.config.offload import KEYS, OffloadSettings, read_offload
from memctl.errors import UsageError
from memctl.location import redact, visible
from memctl.model import ToolPairPolicy
from memctl.retention import DATE, TIME, Policy, PolicyAction, is_archive_name
from memctl.selection import Selection
from memctl.text.values import deletion_limit, period

_KEYS = ("name", "store", "select", "action", "archive", "max_delete", "backup")
_COMPRESS_KEYS = ("summarizer", "keep_recent", "trigger_tokens", "trigger_messages")
_NAMES = {
    "user": "users",
    "session": "sessions",
    "mark": "marks",
    "exclude_mark": "exclude_marks",
    "role": "roles",
    "name": "names",
    "id": "ids",
}
"""The keys of ``select`` with names, and the fields of a selection."""
_TIMES = ("since", "until", "older_than", "newer_than")
_PAIRS = {
    "keep_tool_pairs": ToolPairPolicy.KEEP,
    "with_tool_pairs": ToolPairPolicy.DELETE,
}
_MESSAGES = (*_NAMES, *_TIMES, "match", "live")
_SELECT: dict[PolicyAction, tuple[str, ...]] = {
    PolicyAction.DELETE: (*_MESSAGES, "last", "keep_last", *_PAIRS),
    PolicyAction.COMPRESS: _MESSAGES,
    PolicyAction.ERASE: ("user", "older_than", "until"),
    PolicyAction.PRUNE: ("session", "older_than", "until"),
    PolicyAction.OFFLOAD: (*_MESSAGES, "last", "keep_last"),
}
"""The keys of ``select`` by action."""
_NAME = re.compile(r"[\w.-]{1,100}")
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")


def read_policies(config: Config) -> list[Policy]:
    """Return all policies of the configuration, in the order of the file.

    Ages count back from now.

    Raises:
        UsageError: a table is not a valid policy, or two policies have one name.
    """
    found: list[Policy] = []
    now = datetime.now()
    for number, table in enumerate(config.retention, 1):
        policy = _policy(config, number, table, now)
        if any(other.name == policy.name for other in found):
            raise UsageError(
                f"{config.path}: two policies are named {policy.name!r}", "rename one of them"
            )
        found.append(policy)
    return found


def find_policies(config: Config, names: Collection[str]) -> list[Policy]:
    """Return the policies with these names, in the order of the file; without names, all.

    Raises:
        UsageError: as ``read_policies``; or there is no such policy, or no policy at all.
    """
    found = read_policies(config)
    if not found:
        raise UsageError(
            f"there is no policy of retention in {config.path}",
            "[[retention]] configures one; see memctl help retain",
        )
    known = [policy.name for policy in found]
    for name in names:
        if name not in known:
            near = nearest(name, known)
            raise UsageError(
                f"there is no policy named {visible(repr(name))} in the configuration",
                f"did you mean {near!r}?" if near else f"known: {', '.join(known)}",
            )
    return [policy for policy in found if not names or policy.name in names]


def _policy(config: Config, number: int, table: dict[str, Any], now: datetime) -> Policy:
    path, place = config.path, f"retention {number}"
    name = table.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"{path}: {place} has no name" if name is None else f"{path}: {place}: bad name",
            'write name = "..." with letters, digits, _, - and .',
        )
    place = f"retention {name!r}"
    action = _action(path, place, table.get("action"))
    compresses = action is PolicyAction.COMPRESS
    offloads = action is PolicyAction.OFFLOAD
    keys: Collection[str] = (*_KEYS, *(_COMPRESS_KEYS if compresses else ()))
    if offloads:
        keys = [*(key for key in _KEYS if key != "archive"), *KEYS]
    refuse_unknown(path, f"{place}.", table, keys)
    store = _text(path, place, table, "store", 'write store = "ALIAS"')
    if store not in config.stores:
        near = nearest(store, config.stores)
        raise UsageError(
            f"{path}: {place}: there is no store named {visible(repr(store))}",
            f"did you mean {near!r}?" if near else "[stores.NAME] configures one",
        )
    select = table.get("select", {})
    if not isinstance(select, dict):
        raise UsageError(
            f"{path}: {place}.select is not a table", 'write select = { older_than = "90d" }'
        )
    refuse_unknown(path, f"{place}.select.", select, _SELECT[action])
    where = _selection(path, place, select, now)
    settings = _settings(path, place, table)
    _refuse_unclear(path, place, action, where, settings)
    if compresses:
        try:
            config.summarizer(settings.get("summarizer", "extractive"))
        except UsageError as error:
            raise UsageError(f"{path}: {place}: {error.message}", error.hint) from error
    limit = _limit(path, place, table.get("max_delete"))
    if limit is not None and limit[1] and action is PolicyAction.PRUNE:
        raise UsageError(
            f"{path}: {place}.max_delete is a percentage", "write a number of checkpoints: 5000"
        )
    if offloads:
        found = _offload(config, place, table)
        settings |= {"blobs": found.to, "larger": found.larger, "keep": found.keep}
        settings["url_prefix"] = found.url_prefix
    archive, archive_alias = ("", "") if offloads else _archive(config, place, table)
    return Policy(
        *(name, store, action, archive, where),
        archive_alias=archive_alias,
        pairs=_pairs(path, place, select),
        limit=limit,
        **settings,
    )


def _offload(config: Config, place: str, table: Mapping[str, Any]) -> OffloadSettings:
    """Return the settings of a policy that offloads: its own, and for the others ``[offload]``.

    Raises:
        UsageError: a value is not valid, or neither names the place of the files.
    """
    own = {
        key: _text(config.path, place, table, key, f'write {key} = "..."')
        for key in KEYS
        if key in table
    }
    found = read_offload(config, own, lambda key: f"{config.path}: {place}.{key}")
    if not found.to:
        raise UsageError(
            f"{config.path}: {place} has no to", 'write to = "DIR", or configure [offload]'
        )
    return found


def _action(path: Path, place: str, value: Any) -> PolicyAction:
    known = [action.value for action in PolicyAction]
    if value not in known:
        near = nearest(str(value), known)
        raise UsageError(
            f"{path}: {place} has no action"
            if value is None
            else f"{path}: {place}.action is {value!r}",
            (f"did you mean {near!r}? " if near else "") + f"known: {', '.join(known)}",
        )
    return PolicyAction(value)


def _text(path: Path, place: str, table: Mapping[str, Any], key: str, hint: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise UsageError(
            f"{path}: {place} has no {key}"
            if value is None
            else f"{path}: {place}.{key} is empty or not a text",
            hint,
        )
    return value


def _selection(path: Path, place: str, select: Mapping[str, Any], now: datetime) -> Selection:
    names: dict[str, Any] = {
        field: frozenset(_list(path, f"{place}.select.{key}", select.get(key, [])))
        for key, field in _NAMES.items()
    }
    texts = {key: _time(path, f"{place}.select.{key}", select.get(key)) for key in _TIMES}
    try:
        since, until = period(texts, lambda key: f"select.{key}", now)
    except UsageError as error:
        raise UsageError(f"{path}: {place}: {error.message}", error.hint) from error
    match = select.get("match")
    if match is not None and not isinstance(match, str):
        raise UsageError(f"{path}: {place}.select.match is not a text", 'write match = "..."')
    live = select.get("live")
    if not isinstance(live, bool | None):
        raise UsageError(f"{path}: {place}.select.live is not true or false", "write live = false")
    return Selection(
        **names,
        since=since,
        until=until,
        live=live,
        match=match,
        last=_number(path, f"{place}.select.last", select.get("last")),
        spare=_number(path, f"{place}.select.keep_last", select.get("keep_last")),
    )


def _list(path: Path, place: str, value: Any) -> list[str]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or any(not isinstance(one, str) for one in found):
        raise UsageError(f"{path}: {place} is not a list of texts", 'write ["a", "b"]')
    return found


def _time(path: Path, place: str, value: Any) -> str | None:
    if isinstance(value, date):  # a datetime is a date, too
        return value.isoformat()
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{path}: {place} is not a text", 'write "2026-01-31", or an age: "30d"')
    return value


def _number(path: Path, place: str, value: Any, least: int = 1) -> int | None:
    if value is None:
        return None
    if type(value) is not int or value < least:
        raise UsageError(f"{path}: {place} must be {least} or more", f"write {least + 9}")
    return value


def _pairs(path: Path, place: str, select: Mapping[str, Any]) -> ToolPairPolicy:
    for key in _PAIRS:
        if not isinstance(select.get(key, False), bool):
            raise UsageError(f"{path}: {place}.select.{key} is not true or false", "write true")
    chosen = [policy for key, policy in _PAIRS.items() if select.get(key)]
    if len(chosen) > 1:
        raise UsageError(
            f"{path}: {place}: {' and '.join(_PAIRS)} cannot be combined", "leave one of them out"
        )
    return chosen[0] if chosen else ToolPairPolicy.SPLIT


def _settings(path: Path, place: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a policy that stand in the table itself, without those that lack."""
    if not isinstance(table.get("backup", True), bool):
        raise UsageError(f"{path}: {place}.backup is not true or false", "write backup = false")
    if not isinstance(table.get("summarizer", ""), str):
        raise UsageError(f"{path}: {place}.summarizer is not a text", 'write summarizer = "..."')
    for key, least in (("keep_recent", 1), ("trigger_tokens", 0), ("trigger_messages", 0)):
        _number(path, f"{place}.{key}", table.get(key), least)
    return {key: table[key] for key in ("backup", *_COMPRESS_KEYS) if key in table}


def _refuse_unclear(
    path: Path,
    place: str,
    action: PolicyAction,
    where: Selection,
    settings: Mapping[str, Any],
) -> None:
    """Refuse a policy that would take everything, or everybody.

    Raises:
        UsageError: nothing is selected; or an erase has no age.
    """
    if action is PolicyAction.ERASE and where.until is None:
        raise UsageError(
            f"{path}: {place} erases users, whatever their age",
            'write select = { older_than = "365d" }: users whose newest message is older',
        )
    chosen = settings.keys() & {"keep_recent", "trigger_tokens", "trigger_messages"}
    selects = action in (PolicyAction.PRUNE, PolicyAction.OFFLOAD) or where != Selection()
    if not (selects or chosen):
        raise UsageError(
            f"{path}: {place} selects nothing", 'write select = { older_than = "90d" }, for example'
        )


def _archive(config: Config, place: str, table: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of the archive of a policy, and the alias that has the name as its URL."""
    path = config.path
    example = "archive = 'retired/NAME-{date}.ndjson.zst'"
    text = _text(path, place, table, "archive", f"write {example}")
    alias = config.stores.get(text)
    if alias is not None:
        text = alias.url
    shown = redact(text)
    if DATE not in text:
        raise UsageError(
            f"{path}: {place}.archive has no {DATE}, so that every run would need a new name",
            f"write {example}",
        )
    for found in _PLACEHOLDER.findall(text):
        if found not in (DATE, TIME):
            raise UsageError(
                f"{path}: {place}.archive has {visible(found)}", f"known: {DATE}, {TIME}"
            )
    if not is_archive_name(text):
        raise UsageError(
            f"{path}: {place}.archive is not the name of an archive: {shown}", f"write {example}"
        )
    if "***" in shown and "***" not in text:
        raise UsageError(
            f"{path}: {place}.archive has a secret in its URL",
            "leave it to the environment, the profile, or an alias with password_command",
        )
    filled = text.replace(DATE, "2026-01-31").replace(TIME, "061500")
    try:
        location = config.locate(filled, {})
    except UsageError as error:
        raise UsageError(f"{path}: {place}.archive: {error.message}", error.hint) from error
    if location.kind != "archive":
        raise UsageError(f"{path}: {place}.archive is not an archive: {shown}", f"write {example}")
    return text, alias.name if alias is not None else ""


def _limit(path: Path, place: str, value: Any) -> tuple[float, bool] | None:
    if value is not None and not isinstance(value, str) and type(value) is not int:
        raise UsageError(f"{path}: {place}.max_delete is not a limit", 'write 500, or "20%"')
    try:
        return deletion_limit(None if value is None else str(value), "max_delete")
    except UsageError as error:
        raise UsageError(f"{path}: {place}: {error.message}", error.hint) from error
