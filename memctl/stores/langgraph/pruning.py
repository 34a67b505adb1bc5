"""Which checkpoints of a thread no newer checkpoint needs.

The rules follow ``prune`` of langgraph-checkpoint-postgres 3.2.0, with an age.  LangGraph reads the
newest checkpoint of a namespace: the one with the largest id.  These checkpoints stay:

- the newest checkpoint of each namespace, and all that are not older than the age;
- the parent of such a checkpoint in a format before 4, because it has the pending sends;
- the ancestors of such a checkpoint up to the last snapshot of each delta channel, because the
  value of the channel is put together from them.

A namespace with a ``:`` belongs to one call of a subgraph.  It goes as a whole with the checkpoint
of the root graph from which the call started; if this checkpoint is not stored, it stays: a call
may be stored before its root.  A subgraph with a lasting state has a namespace without a ``:``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from memctl.dialects.view import local_time
from memctl.json import jsonio
from memctl.stores.langgraph.checkpoints import Undecodable, is_snapshot

DELTAS = "counters_since_delta_snapshot"
"""The metadata field that names the channels stored as deltas, without a value."""
_JS_DELTAS = "delta_writes_versioned"
"""The metadata field of threads of LangGraph.js with delta channels."""
_PENDING_SENDS_BEFORE = 4
"""Before this version of the format, a checkpoint has its pending sends at its parent."""

Id = tuple[str, str]
"""A namespace, and the id of a checkpoint in it."""


class Checkpoint(NamedTuple):
    """What decides whether a checkpoint is needed.

    ``moment`` is its local time, ``root`` the id of the checkpoint of the root graph from which the
    call of a subgraph started.  ``versions`` has the version of each channel.  ``deltas`` are the
    delta channels with writes since their last snapshot, ``snapshots`` those with a snapshot here.
    """

    namespace: str
    id: str
    parent: str | None
    format: int
    moment: datetime
    root: str | None
    versions: dict[str, str]
    deltas: frozenset[str]
    snapshots: frozenset[str]

    @property
    def key(self) -> Id:
        """The namespace and the id."""
        return self.namespace, self.id


def checkpoint_of(
    namespace: Any, id: Any, parent: Any, value: Any, metadata: Any, blobs: Iterable[Id] = ()
) -> Checkpoint:
    """Return what decides about a checkpoint with the decoded value ``value``.

    ``metadata`` is the stored JSON.  ``blobs`` are the channels and versions with a row of their
    own in the namespace, if the database has such rows.

    Raises:
        Undecodable: memctl does not understand the checkpoint.
    """
    if not (isinstance(namespace, str) and isinstance(id, str) and isinstance(parent, str | None)):
        raise Undecodable("the id of a checkpoint is not a text")
    about = _metadata(metadata)
    values, versions, format, moment = _fields(value)
    if _JS_DELTAS in about:
        raise Undecodable("it has delta channels of LangGraph.js")
    deltas, parents = about.get(DELTAS, {}), about.get("parents", {})
    if not (isinstance(deltas, dict) and isinstance(parents, dict)):
        raise Undecodable("the metadata of a checkpoint are damaged")
    texts = {name: _version(version) for name, version in versions.items()}
    snapshots = frozenset(
        name
        for name, one in values.items()
        if is_snapshot(one) or (one is True and (name, texts.get(name, "")) in blobs)
    )
    root = parents.get("")
    return Checkpoint(
        *(namespace, id, parent or None, format, moment),
        root if isinstance(root, str) else None,
        *(texts, frozenset(deltas), snapshots),
    )


def _metadata(stored: Any) -> dict[str, Any]:
    try:
        about = jsonio.loads(jsonio.encoded(stored) or b"{}")
    except (ValueError, TypeError) as error:
        raise Undecodable("the metadata of a checkpoint are damaged") from error
    if not isinstance(about, dict):
        raise Undecodable("the metadata of a checkpoint are damaged")
    return about


def _fields(value: Any) -> tuple[dict[str, Any], dict[str, Any], int, datetime]:
    """Return the values and versions of channels, the format and the local time.

    Raises:
        Undecodable: a field is missing.
    """
    match value:
        case {"v": int() as format, "ts": str() as time, "channel_versions": dict() as versions}:
            values = value.get("channel_values")
            if (moment := local_time(time)) is not None and isinstance(values, dict | None):
                return values or {}, versions, format, moment
    raise Undecodable("a checkpoint has no time, or no versions of channels")


def _version(version: Any) -> str:
    return version if isinstance(version, str) else jsonio.dumps(version).decode()


def old_checkpoints(found: Iterable[Checkpoint], until: datetime | None) -> list[Checkpoint]:
    """Return the checkpoints of a thread that can go: not needed, and from before ``until``."""
    spaces: dict[str, dict[str, Checkpoint]] = defaultdict(dict)
    for one in found:
        spaces[one.namespace][one.id] = one
    kept = {name: _kept(space, until) for name, space in spaces.items()}
    roots = spaces.get("", {})
    old: list[Checkpoint] = []
    for name, space in spaces.items():
        newest = space[max(space)]
        is_call = ":" in name and newest.root in roots
        if is_call and newest.root not in kept[""] and _is_old(newest, until):
            old += space.values()
            continue
        old += [one for id, one in space.items() if id not in kept[name]]
    return sorted(old, key=lambda one: one.key)


def _is_old(one: Checkpoint, until: datetime | None) -> bool:
    return until is None or one.moment < until


def _kept(space: dict[str, Checkpoint], until: datetime | None) -> set[str]:
    channels = frozenset[str]().union(*(one.deltas | one.snapshots for one in space.values()))
    wanted = {id for id, one in space.items() if not _is_old(one, until)} | {max(space)}
    kept = set(wanted)
    for id in wanted:
        one = space[id]
        if one.format < _PENDING_SENDS_BEFORE and one.parent is not None:
            kept.add(one.parent)
        unknown = channels - one.snapshots
        walked = {id}
        while unknown and one.parent in space and one.parent not in walked:
            one = space[one.parent]
            walked.add(one.id)
            kept.add(one.id)
            unknown = unknown - one.snapshots
    return kept
