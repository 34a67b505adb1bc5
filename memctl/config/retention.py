"""The policies of retention in the configuration file, ``[[retention]]``."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta
from msgspec.structs import asdict

from memctl.config import Config, refuse_unknown_store
from memctl.config.offload import read_offload
from memctl.errors import UsageError
from memctl.location import redact, visible
from memctl.model import ToolPairPolicy
from memctl.retention import DATE, TIME, Policy, PolicyAction, is_archive_name
from memctl.selection import Selection
from memctl.text.toml import Count, Flag, Name, Natural, Table, Text, means, read_table
from memctl.text.values import data_size, deletion_limit, period
from memctl.text.words import did_you_mean, errors_at

_EXAMPLE = "'retired/NAME-{date}.ndjson.zst'"
_FIELDS = Policy.__struct_fields__
_PAIRS = {
    "keep_tool_pairs": ToolPairPolicy.KEEP,
    "with_tool_pairs": ToolPairPolicy.DELETE,
}
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")

Names = Annotated[str | tuple[str, ...], means("a list of texts", 'KEY = ["a", "b"]')]
When = Annotated[str, means("a text", 'KEY = "2026-01-31", or an age: "30d"')]
Size = Annotated[str, means("a size", 'KEY = "50MB"')]
Limit = Annotated[int | str, means("a limit", 'KEY = 500, or "20%"')]
Items = Annotated[
    int | Annotated[str, Meta(pattern=r"^\s*\d+\s*$")],
    means("a number", "KEY = 5000"),
]
_NAME = means("1 to 100 letters, digits, _, - and .", 'KEY = "..."', pattern=r"^[\w.-]{1,100}$")


class Until(Table, kw_only=True, frozen=True):
    """The end of the selected time."""

    older_than: When | None = None
    until: When | None = None


class Users(Until, kw_only=True, frozen=True):
    """The users that a policy erases."""

    user: Names = ()


class Sessions(Until, kw_only=True, frozen=True):
    """The sessions whose checkpoints or files a policy prunes."""

    session: Names = ()


class Messages(Until, kw_only=True, frozen=True):
    """The messages that a policy summarizes."""

    newer_than: When | None = None
    since: When | None = None
    user: Names = ()
    session: Names = ()
    mark: Names = ()
    exclude_mark: Names = ()
    role: Names = ()
    name: Names = ()
    id: Names = ()
    match: Name | None = None
    live: Flag | None = None


class Numbered(Messages, kw_only=True, frozen=True):
    """The messages that a policy offloads: also the last of each memory, or all but these."""

    last: Count | None = None
    keep_last: Count | None = None


class Paired(Numbered, kw_only=True, frozen=True):
    """The messages that a policy deletes, with or without the calls of their results."""

    larger_than: Size | None = None
    keep_tool_pairs: Flag = False
    with_tool_pairs: Flag = False


class PolicyTable(Table, kw_only=True, frozen=True, tag_field="action"):
    """``[[retention]]``; each action has a class, and a class of what it selects."""

    name: Annotated[str, _NAME]
    store: Annotated[Text, means("a text", 'KEY = "ALIAS"')]
    select: Until = Until()
    max_delete: Limit | None = None
    backup: Flag = True


class Archived(PolicyTable, kw_only=True, frozen=True):
    """A policy that keeps what it removes in an archive."""

    archive: Annotated[Text, means("a text", f"KEY = {_EXAMPLE}")]


class Delete(Archived, kw_only=True, frozen=True, tag="delete"):
    """A policy that deletes messages."""

    select: Paired = Paired()


class Compress(Archived, kw_only=True, frozen=True, tag="compress"):
    """A policy that replaces messages by their summary."""

    select: Messages = Messages()
    summarizer: Text = "extractive"
    keep_recent: Count = 3
    trigger_tokens: Natural | None = None
    trigger_messages: Natural | None = None


class Erase(Archived, kw_only=True, frozen=True, tag="erase"):
    """A policy that erases users."""

    select: Users = Users()


class Prune(Archived, kw_only=True, frozen=True, tag="prune"):
    """A policy that deletes checkpoints, or archived memory files."""

    select: Sessions = Sessions()
    max_delete: Items | None = None


class Offload(PolicyTable, kw_only=True, frozen=True, tag="offload"):
    """A policy that moves large contents to files; ``[offload]`` has the keys that are left out."""

    select: Numbered = Numbered()
    to: Text | None = None
    url_prefix: Text | None = None
    larger: Text | None = None
    keep: Text | None = None


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
            raise UsageError(
                f"there is no policy named {name!r} in the configuration",
                did_you_mean(name, known, f"known: {', '.join(known)}"),
            )
    return [policy for policy in found if not names or policy.name in names]


def _policy(config: Config, number: int, entry: Any, now: datetime) -> Policy:
    path, name = config.path, entry.get("name")
    place = f"retention {name!r}" if isinstance(name, str) else f"retention {number}"
    table = read_table(path, place, entry, Delete, Compress, Erase, Prune, Offload)
    refuse_unknown_store(path, place, table.store, config.stores)
    where = _selection(path, place, table.select, now)
    _refuse_unclear(path, place, table, where, entry)
    fields = {key: value for key, value in asdict(table).items() if key in _FIELDS}
    if isinstance(table, Archived):
        fields |= _archive(config, place, table.archive)
    if isinstance(table, Offload):
        fields |= _offload(config, place, table)
    with errors_at(f"{path}: {place}"):
        if isinstance(table, Compress):
            config.summarizer(table.summarizer)
        limit = None if table.max_delete is None else str(table.max_delete)
        fields["limit"] = deletion_limit(limit, "max_delete")
    pairs = _pairs(path, place, table.select)
    return Policy(action=PolicyAction(entry["action"]), where=where, pairs=pairs, **fields)


def _offload(config: Config, place: str, table: Offload) -> dict[str, Any]:
    """Return the place and the rule of a policy: its own, and for the others ``[offload]``.

    Raises:
        UsageError: a value is not valid, or neither names the place of the files.
    """
    own = {key: getattr(table, key) for key in ("to", "url_prefix", "larger", "keep")}
    found = read_offload(config, own, lambda key: f"{config.path}: {place}.{key}")
    if not found.to:
        raise UsageError(
            f"{config.path}: {place} has no to", 'write to = "DIR", or configure [offload]'
        )
    rule = {key: getattr(found, key) for key in ("larger", "keep", "url_prefix")}
    return {"archive": "", "blobs": found.to, **rule}


def _selection(path: Path, place: str, select: Until, now: datetime) -> Selection:
    given = asdict(select)
    names: dict[str, Any] = {
        f"{key}s": frozenset([named] if isinstance(named, str) else named)
        for key in ("user", "session", "mark", "exclude_mark", "role", "name", "id")
        if (named := given.get(key, ())) != ()
    }
    with errors_at(f"{path}: {place}"):
        since, until = period(given, lambda key: f"select.{key}", now)
        large = given.get("larger_than")
        larger = None if large is None else data_size("select.larger_than", large)
    return Selection(
        **names,
        since=since,
        until=until,
        live=given.get("live"),
        match=given.get("match"),
        last=given.get("last"),
        spare=given.get("keep_last"),
        larger=larger,
    )


def _pairs(path: Path, place: str, select: Until) -> ToolPairPolicy:
    chosen = [policy for key, policy in _PAIRS.items() if getattr(select, key, False)]
    if len(chosen) > 1:
        raise UsageError(
            f"{path}: {place}: {' and '.join(_PAIRS)} cannot be combined", "leave one of them out"
        )
    return chosen[0] if chosen else ToolPairPolicy.SPLIT


def _refuse_unclear(
    path: Path, place: str, table: PolicyTable, where: Selection, keys: Collection[str]
) -> None:
    """Refuse a policy that would take everything, or everybody; ``keys`` are those of its table.

    Raises:
        UsageError: nothing is selected; or an erase has no age.
    """
    if isinstance(table, Erase) and where.until is None:
        raise UsageError(
            f"{path}: {place} erases users, whatever their age",
            'write select = { older_than = "365d" }: users whose newest message is older',
        )
    selects = isinstance(table, Prune | Offload) or where != Selection()
    if not selects and {"keep_recent", "trigger_tokens", "trigger_messages"}.isdisjoint(keys):
        raise UsageError(
            f"{path}: {place} selects nothing", 'write select = { older_than = "90d" }, for example'
        )


def _archive(config: Config, place: str, text: str) -> dict[str, str]:
    """Return the name of the archive of a policy, and the alias that has the name as its URL.

    Raises:
        UsageError: it is not the name of an archive, or every run would write the same.
    """
    path, example = config.path, f"archive = {_EXAMPLE}"
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
    with errors_at(f"{path}: {place}.archive"):
        location = config.locate(filled, {})
    if location.kind != "archive":
        raise UsageError(f"{path}: {place}.archive is not an archive: {shown}", f"write {example}")
    return {"archive": text, "archive_alias": alias.name if alias is not None else ""}
