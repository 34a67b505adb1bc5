"""The runs of a session of Agno as the messages of a memory, and the reverse.  No I/O.

A run holds the messages of one turn, and further data.  Much of the data repeats the messages: the
input, the answer, the tool calls.  In memctl, the ``extra`` of the first message of a run holds the
data.  The ``extra`` of each further message names the run::

    {"content": {...}, "extra": {"run": {"run_id": "r1", "columns": {...}, "data": {...}}}}
    {"content": {...}, "extra": {"run": "r1"}}

If a message of a run is deleted, memctl also deletes the data that repeats messages.  For messages
from other stores memctl makes runs without further data.  Messages of a made run do not name the
run.  If another program has changed a made run, ``StoredMessage.shape`` describes the run as above.

Sources: ``db/utils.py`` (``build_single_run_row``), ``run/agent.py`` and ``session/agent.py`` of
agno 3.1.10.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from math import inf
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from msgspec import Struct, field
from msgspec.structs import replace

from memctl.dialects.agentscope import CONTENT
from memctl.dialects.agno import AGNO
from memctl.dialects.rows import EXTRA, METADATA
from memctl.dialects.view import NOTES
from memctl.errors import BadData
from memctl.json import jsonio
from memctl.location import visible
from memctl.model import StoredMessage
from memctl.storekit.simple import Rejected

RUN = "run"
_SHAPE = "agno"
_MADE = {"memctl": "made"}
"""The metadata of the runs that memctl makes."""
_OF_MADE = frozenset({"run_id", "metadata", "agent_id", "team_id", "created_at", "status"})
"""The fields of the runs that memctl makes, except the messages."""
_SKIPPED = frozenset({"PAUSED", "CANCELLED", "ERROR", "REGENERATED"})
"""The statuses of runs that Agno leaves out of the history (``HISTORY_SKIP_STATUSES``)."""
_KEPT = frozenset(
    {
        *("run_id", "session_id", "user_id", "parent_run_id", "run_index", "created_at", "status"),
        *("agent_id", "agent_name", "team_id", "team_name", "workflow_id", "workflow_name"),
        *("model", "model_provider", "metrics", "metadata", "content_type"),
    }
)
"""The fields of a run without data that repeats messages."""
_OWNER = ("session_id", "user_id")


class Run(Struct, frozen=True):
    """A run of Agno, the row of a turn in the table ``agno_runs``.

    ``columns`` are all columns except ``run_id``, ``session_id`` and ``run_data``.  ``data`` is
    ``run_data`` without the messages.
    """

    id: str
    columns: dict[str, Any]
    data: dict[str, Any]
    messages: list[Any] = field(default_factory=list)
    owned: tuple[str, ...] = _OWNER
    """The fields of ``run_data`` that name the session and the user.  ``data`` lacks them."""

    @property
    def first_time(self) -> int:
        """The time of the first message that has a time, in seconds; 0 if no message has a time."""
        times = (one.get("created_at") for one in self.messages)
        return next((time for time in times if isinstance(time, int) and time), 0)

    @property
    def is_made(self) -> bool:
        """True if memctl made the run."""
        return self.data.get("metadata") == _MADE and self.data.keys() <= _OF_MADE

    @property
    def is_aside(self) -> bool:
        """True if Agno leaves the run out of the history.

        Agno leaves out the runs of members of a team and the runs with a status of ``_SKIPPED``.  A
        run without messages of its own, such as the run of a workflow, counts as left out.
        """
        status = self.columns.get("status")  # in SQLite a value of any type
        skipped = isinstance(status, str) and status in _SKIPPED
        aside = self.columns.get("parent_run_id") or skipped
        return bool(aside) or not any(self.is_made or not is_hidden(one) for one in self.messages)

    def document(self) -> dict[str, Any]:
        """Return the run as a JSON object, without the messages that the memory shows.

        The first message of the run keeps this object in ``extra``.
        """
        hidden = [
            [at, one] for at, one in enumerate(self.messages) if not self.is_made and is_hidden(one)
        ]
        found = {"run_id": self.id, "columns": self.columns, "data": self.data}
        lacks = [name for name in _OWNER if name not in self.owned]
        return found | ({"lacks": lacks} if lacks else {}) | ({"hidden": hidden} if hidden else {})


def is_hidden(message: Any) -> bool:
    """Return whether memctl leaves a message of an Agno run out of the memory.

    Hidden messages repeat earlier runs, or are the prompt that Agno makes again for each run.
    """
    return isinstance(message, dict) and (
        message.get("from_history") is True or message.get("role") in ("system", "developer")
    )


def parse_run(row: dict[str, Any], owner: dict[str, Any]) -> Run:
    """Parse a row of ``agno_runs``.

    ``owner`` has the ``session_id`` and the ``user_id`` of the session.  ``Run.data`` lacks the
    fields that repeat them.

    Raises:
        BadData: the row is damaged.
    """
    id = row["run_id"]
    name = f"the run {visible(str(id))!r}"
    data = row["run_data"]
    if not isinstance(data, dict):
        raise BadData(f"{name} is not a JSON object")
    if not (isinstance(id, str) and _has_place(row)):
        raise BadData(f"{name} has no number as its place, or no text as its id")
    messages = data.get("messages") or []
    if not (isinstance(messages, list) and _are_objects(messages)):
        raise BadData(f"the messages of {name} are not a list of JSON objects")
    if why := next(filter(None, map(AGNO.foreign, messages)), ""):
        raise BadData(f"a message of {name} {why}")
    columns = {
        column: value
        for column, value in row.items()
        if column not in ("run_id", "session_id", "run_data") and value is not None
    }
    rest = {name: value for name, value in data.items() if name != "messages"}
    # Leave out the fields that name the owner: a copy may belong to another owner.
    if owner["user_id"]:
        if row["user_id"] is None:
            columns["user_id"] = None
        elif row["user_id"] == owner["user_id"]:
            del columns["user_id"]
    named = {name: value for name, value in owner.items() if value}
    lacks = {name for name in named if name not in rest}
    rest = {name: value for name, value in rest.items() if value != named.get(name, ...)}
    return Run(id, columns, rest, messages, tuple(one for one in _OWNER if one not in lacks))


def _are_objects(messages: list[Any]) -> bool:
    return all(isinstance(one, dict) for one in messages)


def _has_place(columns: dict[str, Any]) -> bool:
    return isinstance(columns.get("run_index"), int | None) and isinstance(
        columns.get("created_at"), int | None
    )


def parse_document(value: Any) -> Run | None:
    """Parse a result of ``Run.document``; None for any other value."""
    match value:
        case {"run_id": str(id), "columns": dict(columns), "data": dict(data), **rest} if (
            _has_place(columns)
        ):
            messages, lacks = rest.get("messages", []), rest.get("lacks", [])
            if isinstance(messages, list) and isinstance(lacks, list) and _are_objects(messages):
                owned = tuple(one for one in _OWNER if one not in lacks)
                return Run(id, columns, data, messages.copy(), owned)
    return None


def entries(run: Run, *, as_made: bool) -> Iterator[StoredMessage]:
    """Yield the messages of a run that the memory shows.

    ``as_made`` is True if memctl would make an equal run from the messages alone.  Then the
    messages need no shape that describes the run.
    """
    said: Any = run.document()
    for message in run.messages:
        if not run.is_made and is_hidden(message):
            continue
        value = AGNO.unpack(message)
        shape = ""
        if not run.is_made:
            value[EXTRA] = {RUN: said}
        elif not as_made:
            shape = jsonio.dumps({_SHAPE: said}).decode()
        said = run.id
        text = jsonio.dumps(value)
        yield StoredMessage(AGNO.message_id(value), text, shape=shape)


def _shape(text: str) -> Any:
    """Return the run in a message's shape, as an id or a ``Run.document``; None without a run."""
    try:
        found = jsonio.loads(text.encode()) if text else None
    except ValueError:
        return None
    return found.get(_SHAPE) if isinstance(found, dict) else None


def made_id(session: str, message: str, number: int = 1) -> str:
    """Return an id for a run that memctl makes from messages of a session.

    ``session`` is the id of the session, ``message`` the id of the first message of the run.  A
    higher ``number`` gives another id, for the case that the first is taken.
    """
    return str(uuid5(NAMESPACE_URL, f"memctl:{session}:{message}:{number}"))


def begins_run(message: Any, behind: Iterable[Any]) -> bool:
    """Return whether memctl begins a new run with a message.

    ``behind`` are the earlier messages of the current run.  A message of the user begins a new run,
    unless the current run has only system messages.
    """
    return message.get("role") == "user" and any(one.get("role") != "system" for one in behind)


def is_one_run(messages: Sequence[Any]) -> bool:
    """Return whether memctl would make a single run from the messages."""
    begin = next((at for at, one in enumerate(messages) if one.get("role") != "system"), 0)
    return not any(begins_run(one, messages[begin : begin + 1]) for one in messages[begin + 1 :])


class Regrouping:
    """Groups the messages of a memory into runs of Agno.

    ``session`` is the id of the session, ``there`` are the stored runs of the session.
    """

    def __init__(self, session: str, there: Iterable[Run]) -> None:
        self._session = session
        self._there = {run.id: run for run in there}
        self._runs: dict[str, Run] = {}
        self._current: Run | None = None
        self._hidden: list[tuple[int, Any]] = []
        """The hidden messages of the current run still to insert, with their places."""
        self._stay: frozenset[str] = frozenset()
        """The ids of the messages to group."""
        self._rests: set[str] = set()
        """The ids of the stored runs whose first message is not among the messages."""

    def runs(self, messages: Sequence[StoredMessage]) -> list[Run]:
        """Group the messages into runs, in the order of the messages.  New runs have no columns.

        Raises:
            Rejected: a message has marks or fields for which Agno has no place, names an invalid
                run, or stands apart from the other messages of its run.
        """
        self._stay = frozenset(entry.id for entry in messages)
        for entry in messages:
            value = jsonio.loads(entry.message)
            self._take(entry, value if isinstance(value, dict) else {})
        self._end()
        for id in self._rests:
            run = self._runs[id]
            data = _without_copies(self._there[id].data, run.messages)
            self._runs[id] = replace(run, data=data)
        return list(self._runs.values())

    def _take(self, entry: StoredMessage, value: dict[str, Any]) -> None:
        content = value.get(CONTENT)
        extra = value.get(EXTRA) or {}
        others = [name for name in value if name not in (CONTENT, EXTRA, METADATA)]
        others += [name for name in value.get(METADATA) or () if name != NOTES]
        others += [name for name in extra if name != RUN]
        if others or entry.marks or not isinstance(content, dict):
            what = repr(others[0]) if others else "marks" if entry.marks else "such a content"
            text = f"Agno has no place for {what}, which the message {entry.id!r} has"
            raise Rejected("refused", text)
        said = extra.get(RUN)
        if said is None:
            run = self._changed(_shape(entry.shape)) or self._made(entry.id, content)
        elif isinstance(said, str):
            run = self._going_on(said) or self._rest(said)
        elif (new := parse_document(said)) is not None:
            # Two messages have a document if an undo has restored the first message of the run.
            run = self._going_on(new.id) or self._begin(new, _places(said.get("hidden")))
        else:
            raise Rejected("refused", f"the run of the message {entry.id!r} is not one")
        self._show(len(run.messages))
        run.messages.append(AGNO.pack(value))

    def _going_on(self, id: str) -> Run | None:
        return self._current if self._current is not None and self._current.id == id else None

    def _rest(self, id: str) -> Run:
        """Begin the rest of a run whose first message, with the data of the run, is not there."""
        there = self._there.get(id)
        if there is None or there.is_made:
            return self._begin(_bare(id, there))
        gone = {_id_of(one) for run in self._there.values() for one in run.messages} - self._stay
        hidden: list[tuple[int, Any]] = []
        place = 0
        for one in there.messages:
            if not is_hidden(one):
                place += _id_of(one) in self._stay
            elif not _repeats(one, gone):
                hidden.append((place, one))
                place += 1
        self._rests.add(id)
        return self._begin(_bare(id, there), hidden)

    def _show(self, place: float) -> None:
        """Insert the hidden messages of the current run whose places are at most ``place``."""
        while self._current is not None and self._hidden and self._hidden[0][0] <= place:
            self._current.messages.append(self._hidden.pop(0)[1])
            place += 1

    def _end(self) -> None:
        self._show(inf)

    def _begin(self, run: Run, hidden: Iterable[tuple[int, Any]] = ()) -> Run:
        self._end()
        if run.id in self._runs:
            text = f"messages of the run {run.id!r} stand apart, with others between them"
            raise Rejected("refused", text)
        self._runs[run.id] = self._current = run
        self._hidden = list(hidden)
        return run

    def _changed(self, said: Any) -> Run | None:
        """Return the run that a message's shape names, and begin it if it has not begun.

        ``said`` is the id or the ``Run.document`` of the run.  Returns None if the run does not
        exist, was not made by memctl, or has ended.
        """
        run = self._there.get(said) if isinstance(said, str) else parse_document(said)
        if run is None or not run.is_made:
            return None
        if run.id in self._runs:  # messages of other runs may have come in between
            return self._going_on(run.id)
        return self._begin(_bare(run.id, run))

    def _made(self, id: str, content: dict[str, Any]) -> Run:
        current = self._current
        if current and current.is_made and not begins_run(content, current.messages):
            return current
        number = 1
        while self._is_taken(run_id := made_id(self._session, id, number)):
            number += 1
        return self._begin(Run(run_id, {}, {"run_id": run_id, "metadata": _MADE}))

    def _is_taken(self, id: str) -> bool:
        there = self._there.get(id)
        return id in self._runs or (there is not None and not there.is_made)


def _places(value: Any) -> Iterator[tuple[int, Any]]:
    for one in value if isinstance(value, list) else ():
        match one:
            case [int(at), dict(message)]:
                yield at, message


def _bare(id: str, run: Run | None) -> Run:
    """Return ``run`` without messages and without the data that repeats messages.

    If ``run`` is None, returns a new run with the id ``id``.
    """
    if run is None:
        return Run(id, {}, {"run_id": id})
    return replace(run, data=_without_copies(run.data, ()), messages=[])


def _id_of(message: Any) -> str:
    return AGNO.message_id(AGNO.unpack(message)) or ""


def _without_copies(data: dict[str, Any], stay: Iterable[Any]) -> dict[str, Any]:
    """Return the data of a run without repeated messages, but for those in ``stay``."""
    stay = [one for one in stay if not is_hidden(one)]
    said = {
        role: [one["content"] for one in stay if one.get("role") == role and "content" in one]
        for role in ("user", "assistant")
    }
    found: dict[str, Any] = {}
    for name, value in data.items():
        match name, value:
            case "content", str() if value in said["assistant"]:
                found[name] = value
            case "input", {"input_content": str(text), **rest} if text in said["user"] and not any(
                rest.values()
            ):
                found[name] = value
            case _ if name in _KEPT:
                found[name] = value
    return found


def without_copies(
    messages: list[StoredMessage], gone: list[StoredMessage]
) -> tuple[list[StoredMessage], dict[str, Any]]:
    """Remove the data in runs that repeats deleted messages.

    ``messages`` are the messages of the memory after the deletion, ``gone`` the deleted messages.
    Returns ``messages`` with the changed runs in their ``extra``.  Also returns the former
    ``Run.document`` of each changed run, by id of the run.  A run also changes if the deletion
    moves its hidden messages.
    """
    ids, touched = {entry.id for entry in gone}, {run_of(entry) for entry in gone}
    stay: dict[str | None, list[Any]] = {id: [] for id in touched}
    for entry in messages:
        if (id := run_of(entry)) in stay:
            stay[id].append(jsonio.loads(entry.message)[CONTENT])
    kept: dict[str, Any] = {}
    found: list[StoredMessage] = []
    for entry in messages:
        value = jsonio.loads(entry.message) if b'"columns"' in entry.message else {}
        said = value.get(EXTRA, {}).get(RUN)
        if isinstance(said, dict):
            id = said["run_id"]
            bare = {**said}
            if id in touched:
                bare["data"] = _without_copies(said["data"], stay[id])
            if "hidden" in said:
                bare["hidden"] = [one for one in said["hidden"] if not _repeats(one[1], ids)]
                if id in touched and any(
                    at != place for at, (place, _) in enumerate(said["hidden"])
                ):
                    kept[id] = said
            if bare != said:
                kept[id] = said
                value[EXTRA] = {RUN: bare}
                entry = entry._replace(message=jsonio.dumps(value))
        found.append(entry)
    return found, kept


def _repeats(message: dict[str, Any], ids: Set[str]) -> bool:
    return message.get("from_history") is True and AGNO.own_id(message) in ids


def with_copies(messages: list[StoredMessage], kept: dict[str, Any]) -> list[StoredMessage]:
    """Return the messages with the data that ``without_copies`` removed from their runs.

    ``kept`` is the second result of ``without_copies``.
    """
    found: list[StoredMessage] = []
    for entry in messages:
        id = run_of(entry)
        if id in kept:
            value = jsonio.loads(entry.message)
            if isinstance(value[EXTRA][RUN], dict):
                value[EXTRA] = {RUN: kept[id]}
                entry = entry._replace(message=jsonio.dumps(value))
        found.append(entry)
    return found


def run_of(entry: StoredMessage) -> str | None:
    """Return the id of the run that a message names in ``extra``; None if it names no run."""
    if b'"run"' not in entry.message:
        return None
    extra = jsonio.loads(entry.message).get(EXTRA) or {}
    said = extra.get(RUN)
    found = said.get("run_id") if isinstance(said, dict) else said
    return found if isinstance(found, str) else None
