"""Detection of tables with messages in an unknown database, and proposals to map them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from sqlalchemy import (
    ARRAY,
    JSON,
    Connection,
    Date,
    DateTime,
    Float,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
    Time,
    cast,
    func,
    inspect,
    select,
)
from sqlalchemy.engine.reflection import Inspector
from sqlalchemy.types import NullType

from memctl.dialects.roles import ROLE_NAMES
from memctl.dialects.rows import COLUMN_ROLES, Flag, blocks_of
from memctl.engines.sql.columns import Column, TimeFormat
from memctl.layouts.sql import (
    AGNO_RUNS,
    AGNO_SESSIONS,
    ALL_TABLES,
    BRANCH_TABLES,
    BRANCHES,
    PRESET_TABLES,
    branch_tables,
    find_layouts,
    foreign_tables,
    preset_of,
    preset_with,
)
from memctl.location import without_secrets
from memctl.stores.tables.codec import ROWID, is_message, parse_json
from memctl.stores.tables.mapping import CALL_COLUMNS
from memctl.stores.tables.presets import PRESETS

_MAPPING = ("layout", "table", "columns", "dialect", "content_encoding", "live", "summary")
"""The options of a URL that the lines of a proposal replace."""
SAMPLE = 200
"""The number of rows of a table to examine."""
FEWEST_ROWS = 4
"""The fewest rows whose contents may tell what a column is."""
_NAMES: dict[str, tuple[str, ...]] = {
    "session": (
        *("session_id", "session", "conversation_id", "conversation", "chat_id", "thread_id"),
        *("dialog_id", "conversationid", "sessionid", "chatid", "threadid", "chat", "thread"),
    ),
    "user": ("user_id", "user", "userid", "owner", "username", "account_id"),
    "role": ("role", "sender", "speaker", "author", "sender_type", "from_role", "type"),
    "content": ("content", "message", "text", "body", "msg", "utterance", "message_text"),
    "time": (
        *("timestamp", "created_at", "created", "time", "sent_at", "createdat", "ts", "date"),
        *("inserted_at", "at"),
    ),
    "id": ("message_id", "msg_id", "uuid", "uid", "messageid", "id"),
    "name": ("name", "sender_name", "author_name", "speaker_name"),
    "metadata": ("metadata", "meta", "extra"),
    **CALL_COLUMNS,
}
"""The usual names of columns by role, the likeliest first."""
_PERHAPS: dict[str, tuple[str, ...]] = {
    "role": ("who", "from", "said_by"),
    "name": ("who", "from", "said_by", "speaker", "sender", "author", "nick"),
    "content": ("said", "line"),
    "time": ("when", "datetime", "date_time", "sent", "posted_at"),
    "session": (
        *("conv", "conv_id", "convo", "convo_id", "dialog", "dialogue", "dialogue_id"),
        *("room", "room_id", "channel", "channel_id", "topic", "topic_id", "ticket_id"),
    ),
}
"""Names of columns by role that may have another meaning; a session needs the other roles."""
_ORDER = (
    *("position", "index", "idx", "seq", "sequence", "ordinal"),
    *("sequence_id", "sequence_number", "sequence_no", "seq_id", "seq_no", "seq_num", "seqno"),
    *("message_index", "message_number", "message_no", "message_order", "msg_index", "msg_no"),
    *("turn", "turn_index", "turn_number", "step", "order", "sort_order", "nr", "number"),
)
_ITEMS = frozenset(
    {"message", "function_call", "function_call_output", "reasoning", "item_reference"}
)
_SIGNS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "langchain": lambda one: isinstance(one.get("type"), str) and isinstance(one.get("data"), dict),
    "langchain-js": lambda one: {"type", "content", "additional_kwargs"} <= one.keys(),
    "llamaindex": lambda one: "role" in one and ("blocks" in one or "additional_kwargs" in one),
    "adk": lambda one: "author" in one and "actions" in one,
    "openai-agents": lambda one: one.get("type") in _ITEMS,
}
"""For each dialect, a test whether a JSON object is a message of the dialect."""
_READ = ("active", "is_active", "enabled")
_LEFT_OUT = (
    *("deleted", "is_deleted", "removed", "hidden", "archived", "is_archived"),
    *("deleted_at", "removed_at", "archived_at"),
)
"""The usual names of columns that mark the rows that a program reads, or does not read."""
_SUMMARY = ("is_summary", "summary")
"""The usual names of columns that mark summaries."""
_NAMED_VALUES = 3


class Proposal(Struct, frozen=True):
    """A table that seems to hold messages, with the store options that read the table.

    ``layout`` is the preset of a framework, or ``table`` with ``columns``, the columns by role.
    """

    table: str
    rows: int
    layout: str
    columns: dict[str, str | list[str]] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    dialect: str = ""
    """The dialect of the contents; empty for plain texts and for presets."""
    encoding: str | None = ""
    """The encoding of texts, ``text`` or ``json``; None if no row shows the encoding.

    Empty if the column type or the dialect decides.
    """
    live: str = ""
    """The condition of the rows that the program reads; empty if it seems to read all."""
    summary: str = ""
    """The condition of the rows that are summaries; empty if no column seems to tell."""

    @property
    def names_user(self) -> bool:
        """True if a column names the user, so that no ``owner`` can be set."""
        preset = PRESETS.get(self.layout)
        return "user" in (preset.columns if preset else self.columns)

    def toml(self, name: str, label: str) -> str:
        """Return the lines of a configuration file that define the table as the store ``name``.

        ``label`` is the label of the database.  For a hidden password, the lines name an
        environment variable.
        """
        url = without_secrets(label, *_MAPPING, *(["owner"] if self.names_user else []))
        lines = [f"[stores.{name}]", f"url = {_text(url)}", f"layout = {_text(self.layout)}"]
        if "***" in label:
            lines.insert(2, 'password_env = "DATABASE_PASSWORD"')
        preset = PRESETS.get(self.layout)
        if self.table != (preset.table if preset else PRESET_TABLES["openai-agents"].name):
            lines.append(f"table = {_text(self.table)}")
        if self.columns:
            pairs = ", ".join(f"{role} = {_text(one)}" for role, one in self.columns.items())
            lines.append(f"columns = {{ {pairs} }}")
        if self.dialect:
            lines.append(f"dialect = {_text(self.dialect)}")
        if self.encoding:
            lines.append(f"content_encoding = {_text(self.encoding)}")
        elif self.encoding is None:
            lines.append('content_encoding = "text" # "json" if programs read it with json.loads')
        for option, flag in (("live", self.live), ("summary", self.summary)):
            if flag:
                lines.append(f"{option} = {_text(flag)}")
        return "\n".join(lines)


def _text(value: str | list[str]) -> str:
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08X}" for char in quoted)


def detect(connection: Connection) -> list[Proposal]:
    """Return the tables that seem to hold messages; tables of known frameworks come first.

    Tables of AgentScope and Agno are left out, because they need no mapping.  Tables of formats
    that memctl does not read are left out, too.
    """
    inspector = inspect(connection)
    own = {AGNO_SESSIONS, AGNO_RUNS, *BRANCH_TABLES}
    structured = branch_tables(connection)
    own = own.union(*(ALL_TABLES[layout] for layout in find_layouts(connection)))
    found: list[Proposal] = []
    guessed: list[Proposal] = []
    own |= foreign_tables(connection).keys()
    for name in sorted(set(inspector.get_table_names()) - own):
        table = Table(name, MetaData(), autoload_with=connection)
        preset = preset_of(inspector, name)
        if preset == "langchain" and not _is_langchain(connection, table):
            preset = None
        if structured is not None and name == structured.messages:
            preset = BRANCHES
        if preset is not None:
            reasons = [f"its columns are those of {preset}"]
            more = PRESETS[preset].more if preset in PRESETS else {}
            reasons += [f"{role} = {one}" for role, one in more.items() if one in table.columns]
            found.append(Proposal(name, _count(connection, table), preset, {}, reasons))
            continue
        sample = _sample(connection, table)
        columns, reasons = _guess(connection, sample, table, inspector)
        if {"session", "content"} <= columns.keys():
            rows = _count(connection, table)
            content = str(columns["content"])
            contents = [row[content] for row in sample if row[content] is not None]
            dialect = _dialect_of(contents)
            if dialect:  # the contents hold the tool calls
                columns = {role: one for role, one in columns.items() if role not in CALL_COLUMNS}
                reasons.append(f"dialect = {dialect}: by the contents")
            elif "role" not in columns:
                reasons.append("role: not found; memctl does not know who is the assistant")
            typed = isinstance(table.columns[content].type, JSON)
            encoding = "" if dialect or typed else _encoding_of(contents)
            if encoding == "json":
                reasons.append("content_encoding = json: all contents are JSON")
            live = _live(sample, columns)
            if live:
                reasons.append(f"live = {live}: by its name; the program reads no other rows")
            summary = _summary(sample, columns)
            if summary:
                reasons.append(f"summary = {summary}: by its name and its values")
            one = Proposal(name, rows, "table", columns, reasons, dialect, encoding, live, summary)
            guessed.append(one)
    return found + guessed


def _live(sample: Sequence[Mapping[str, Any]], columns: Mapping[str, str | list[str]]) -> str:
    """Return the condition of the rows that the program seems to read; empty without a flag."""
    for name in sample[0] if sample else ():
        plain = name.lower()
        if name in columns.values() or plain not in (*_READ, *_LEFT_OUT):
            continue
        values = [row[name] for row in sample]
        if plain.endswith("_at"):
            if None in values:
                return str(Flag(name, None))
        elif all(value in (0, 1) for value in values):
            wanted = plain in _READ
            return str(Flag(name, wanted if isinstance(values[0], bool) else int(wanted)))
    return ""


def _summary(sample: Sequence[Mapping[str, Any]], columns: Mapping[str, str | list[str]]) -> str:
    """Return the condition of the rows that seem to be summaries; empty if no column tells."""
    for name in sample[0] if sample else ():
        values = [row[name] for row in sample]
        if name in columns.values():
            continue
        if name.lower() in _SUMMARY and all(value in (0, 1) for value in values):
            return str(Flag(name, True if isinstance(values[0], bool) else 1))
        if "summary" in values and all(isinstance(value, str) for value in values):
            return str(Flag(name, "summary"))
    return ""


def text_tables(connection: Connection) -> list[str]:
    """Return the tables with columns of texts, each with these columns in parentheses."""
    found = []
    for name in sorted(inspect(connection).get_table_names()):
        table = Table(name, MetaData(), autoload_with=connection)
        sample = _sample(connection, table)
        columns = [
            f"{one.name}: messages in JSON" if _holds_messages(sample, one.name) else one.name
            for one in table.columns
            if isinstance(one.type, String | JSON | ARRAY | NullType)
        ]
        if columns:
            found.append(f"{name} ({', '.join(columns)})")
    return found


def tables_like(connection: Connection, layout: str, table: str) -> list[str]:
    """Return the tables besides ``table`` that hold messages of the framework ``layout``."""
    inspector = inspect(connection)
    own = {table, *BRANCH_TABLES}
    if (structured := branch_tables(connection)) is not None:
        own.add(structured.messages)
    found = []
    for (_, name), columns in inspector.get_multi_columns().items():
        if name in own or preset_with({one["name"] for one in columns}) != layout:
            continue
        other = Table(name, MetaData(), autoload_with=connection)
        if _sample(connection, other) and (
            layout != "langchain" or _is_langchain(connection, other)
        ):
            found.append(name)
    return sorted(found)


def _encoding_of(contents: Sequence[Any]) -> str | None:
    if not contents:
        return None
    return "json" if all(map(_is_json, contents)) else "text"


def _sample(connection: Connection, table: Table) -> Sequence[Mapping[str, Any]]:
    # As texts, because a driver may not hold a time of the database.
    columns = [
        cast(one, String).label(one.name) if isinstance(one.type, Date | DateTime | Time) else one
        for one in table.columns
    ]
    return connection.execute(select(*columns).limit(SAMPLE)).mappings().all()  # type: ignore[return-value]


def _is_langchain(connection: Connection, table: Table) -> bool:
    """Return whether a table with the columns of LangChain holds LangChain messages.

    True for an empty table, because only the contents could tell.
    """
    preset = PRESETS["langchain"]
    rows = [_document(row[preset.columns["content"]]) for row in _sample(connection, table)]
    return not rows or any(one is not None and _SIGNS["langchain"](one) for one in rows)


def _dialect_of(contents: Iterable[Any]) -> str:
    documents = list(map(_document, contents))
    for name, fits in _SIGNS.items():
        if documents and all(one is not None and fits(one) for one in documents):
            return name
    return ""


def _document(value: Any) -> dict[str, Any] | None:
    if isinstance(value, str) and value.startswith("{"):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, dict) else None


def _count(connection: Connection, table: Table) -> int:
    return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


def _holds_messages(sample: Sequence[Mapping[str, Any]], column: str) -> bool:
    """Return whether all values of a column are messages, or lists of messages, in JSON."""
    values = [row[column] for row in sample if row[column] is not None]
    return bool(values) and all(is_message(_parsed(value)) for value in values)


def _parsed(value: Any) -> Any:
    return parse_json(value) if isinstance(value, str) and value.startswith(("[", "{")) else value


def _guess(
    connection: Connection,
    sample: Sequence[Mapping[str, Any]],
    table: Table,
    inspector: Inspector,
) -> tuple[dict[str, str | list[str]], list[str]]:
    """Return the probable columns of a table by role, and the reasons as texts.

    ``sample`` has the first rows of the table.
    """
    columns: dict[str, str | list[str]] = {}
    reasons: list[str] = []
    free = [column.name for column in table.columns]
    for role, names in _NAMES.items():
        for name in names:
            column = next((one for one in free if one.lower() == name), None)
            if column is None:
                continue
            values = [row[column] for row in sample if row[column] is not None]
            reason = _reason(role, table, column, values)
            if reason:
                columns[role] = column
                free.remove(column)
                reasons.append(f"{role} = {column}: {reason}")
                break
    reasons += _add_documents(sample, columns, free)
    reasons += _add_by_contents(sample, table, columns, free)
    reasons += _add_perhaps(sample, table, columns, free)
    id = columns.get("call_id")
    if id and "calls" not in columns and _clash(connection, table, columns, [str(id)], filled=True):
        reasons = [one for one in reasons if not one.startswith(("call_id =", "call_name ="))]
        reasons.append(f"{id}: not read; an id is in two rows of a session, a call and its result")
        columns = {role: one for role, one in columns.items() if not role.startswith("call_")}
    order, reason = _order(connection, table, inspector, columns, free)
    if order:
        columns["order"] = order[0] if len(order) == 1 else order
        reasons.append(f"order = {', '.join(order)}: {reason}")
    elif "session" in columns:
        reasons.append("order: not found; name the columns that order the messages of a session")
    ordered = {role: columns[role] for role in COLUMN_ROLES if role in columns}
    return ordered, reasons


def _add_documents(
    sample: Sequence[Mapping[str, Any]], columns: dict[str, str | list[str]], free: list[str]
) -> list[str]:
    """Add a column whose contents are messages of a framework; return the reasons."""
    reasons: list[str] = []
    for name in free if "content" not in columns else ():
        dialect = _dialect_of(row[name] for row in sample if row[name] is not None)
        if dialect:
            columns["content"] = name
            reasons.append(f"content = {name}: messages of {dialect}")
            if dialect == "llamaindex" and "key" in free and "session" not in columns:
                columns["session"] = "key"
                reasons.append("session = key: as in SQLiteChatStore of LlamaIndex")
            break
    free[:] = [name for name in free if name not in columns.values()]
    return reasons


def _add_perhaps(
    sample: Sequence[Mapping[str, Any]],
    table: Table,
    columns: dict[str, str | list[str]],
    free: list[str],
) -> list[str]:
    """Add columns with names of ``_PERHAPS``; return the reasons."""
    reasons: list[str] = []
    for role, names in _PERHAPS.items():
        speaks = "role" in columns or {"name", "time"} <= columns.keys()
        if role in columns or (role == "name" and "role" in columns):
            continue
        if role == "session" and not speaks:
            continue
        for name in (one for wanted in names for one in free if one.lower() == wanted):
            values = [row[name] for row in sample if row[name] is not None]
            if reason := _reason(role, table, name, values):
                columns[role] = name
                free.remove(name)
                more = "" if reason == "by its name" else f": {reason}"
                reasons.append(f"{role} = {name}: perhaps, by its name{more}")
                break
    return reasons


def _add_by_contents(
    sample: Sequence[Mapping[str, Any]],
    table: Table,
    columns: dict[str, str | list[str]],
    free: list[str],
) -> list[str]:
    """Add columns whose contents look like roles, texts, sessions or times; return the reasons.

    ``columns`` has the columns that are known by their names, ``free`` the others.  Without a
    column of roles, nothing tells messages from other texts, and no column is added.
    """
    values = {name: [row[name] for row in sample if row[name] is not None] for name in free}
    reasons: list[str] = []

    def add(role: str, found: Sequence[str], why: str) -> None:
        if role in columns or not found:
            return
        columns[role] = found[0]
        free.remove(found[0])
        others = f"; or is it {', '.join(found[1:])}?" if found[1:] else ""
        reasons.append(f"{role} = {found[0]}: perhaps, by its contents: {why}{others}")

    speaking = {name: {str(one).lower() for one in found} for name, found in values.items()}
    roles = [name for name, found in speaking.items() if len(found) > 1 and found <= ROLE_NAMES]
    add("role", roles, f"holds {', '.join(sorted(speaking[roles[0]]))}" if roles else "")
    if "role" not in columns or len(sample) < FEWEST_ROWS:
        return reasons
    dated = [name for name in free if _has_dates(table, name, values[name])]
    add("time", dated, "times")
    texts = {
        name: sum(map(len, values[name]))
        for name in free
        if name not in dated
        and _varies(values[name])
        and all(map(_is_text, values[name]))
        and not _holds_messages(sample, name)
    }
    add("content", sorted(texts, key=lambda name: -texts[name])[:1], "the longest texts")
    groups = {
        name: len({str(one) for one in values[name]})
        for name in free
        if name not in (*dated, *texts)
        and len(values[name]) == len(sample)
        and not any(isinstance(one, float | dict | list | bytes) for one in values[name])
    }
    grouping = [name for name, number in groups.items() if 1 < number <= len(sample) // 2]
    grouping.sort(key=lambda name: (not table.columns[name].foreign_keys, -groups[name]))
    number = groups[grouping[0]] if grouping else 0
    add("session", grouping, f"{number} values in {len(sample)} rows")
    return reasons


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _varies(values: Sequence[Any]) -> bool:
    """Return whether most values differ, as what people say does."""
    return len(set(map(str, values))) > len(values) / 2


def _has_dates(table: Table, column: str, values: Sequence[Any]) -> bool:
    """Return whether a column has dates and times, by its type or as texts in ISO 8601."""
    if isinstance(table.columns[column].type, Date | DateTime):
        return True
    return (
        bool(values) and all(map(_is_text, values)) and _reason("time", table, column, values) != ""
    )


def _reason(role: str, table: Table, column: str, values: Sequence[Any]) -> str:
    type_ = table.columns[column].type
    match role:
        case "role":
            roles = {str(value).lower() for value in values}
            if not roles:
                return "by its name"
            known, others = sorted(roles & ROLE_NAMES), sorted(roles - ROLE_NAMES)
            more = ", ".join(others[:_NAMED_VALUES]) + (", ..." if others[_NAMED_VALUES:] else "")
            unsure = f"; memctl does not know {more} as roles" if others else ""
            return f"holds {', '.join(known)}{unsure}" if known else ""
        case "content":
            known_types = all(isinstance(value, str | dict | list) for value in values)
            if isinstance(type_, ARRAY) or not known_types:
                return ""
            messages = all(is_message(_parsed(value)) for value in values)
            if values and messages and not _dialect_of(values):
                return ""  # reading refuses them
            blocks = sum(isinstance(one, str) and blocks_of(one) is not None for one in values)
            return f"texts, {blocks} of {len(values)} as blocks in JSON" if blocks else "texts"
        case "time":
            sample = values[0] if values else None
            format = TimeFormat.of(Column(column, type_, typed=False), sample)
            if format.unit:
                units = {1: "seconds", 10**3: "milliseconds", 10**6: "microseconds"}
                return f"numbers of {units.get(format.unit, 'nanoseconds')} since 1970"
            return "times" if all(_is_time(format, value) for value in values) else ""
        case "id":
            if isinstance(type_, Integer):
                return ""
            return "texts, all different" if len(set(map(str, values))) == len(values) else ""
        case "metadata":
            return "JSON objects" if values and all(map(_is_object, values)) else ""
        case "calls":
            if not values:
                return "by its name"
            return "calls of tools in JSON" if all(map(_is_json, values)) else ""
        case "call_id" | "call_name":
            return "by its name"
        case "user" | "name" | "session":
            return "" if isinstance(type_, JSON | ARRAY) else "by its name"
    return ""


def _is_time(format: TimeFormat, value: Any) -> bool:
    return "T" in (format.read(value) or "T")


def _is_object(value: Any) -> bool:
    return _document(value) is not None


def _is_json(value: Any) -> bool:
    if not isinstance(value, str):
        return isinstance(value, dict | list)
    if not value.startswith(('"', "[", "{")):
        return False
    try:
        json.loads(value)
    except ValueError:
        return False
    return True


def _order(
    connection: Connection,
    table: Table,
    inspector: Inspector,
    columns: dict[str, str | list[str]],
    free: Iterable[str],
) -> tuple[list[str], str]:
    """Return the columns that order the rows, and the reason for the choice.

    ``columns`` has the columns by role, ``free`` the names of the columns without a role.  The
    first choice that is unique in the rows of each session counts.
    """

    def clashes(order: list[str]) -> bool:
        return "session" in columns and _clash(connection, table, columns, order)

    named = [name for wanted in _ORDER for name in free if name.lower() == wanted]
    choices = [
        ([name], "a number, by its name")
        for name in named
        if isinstance(table.columns[name].type, Integer)
    ]
    key = list(inspector.get_pk_constraint(table.name)["constrained_columns"])
    if len(key) == 1 and isinstance(table.columns[key[0]].type, Integer):
        choices.append((key, "the primary key, a number"))
    time = columns.get("time")
    last = key or [ROWID] * (connection.dialect.name == "sqlite")
    if isinstance(time, str):
        more = [name for name in last if name != time]
        reason = "the times"
        if more and not isinstance(table.columns[time].type, Integer | Numeric | Float):
            reason += f", and the {'key' if key else 'rowid'} where two are the same"
        if key and clashes([time]):
            reason += "; some are, and the order of their rows is unsure"
        choices.append(([time, *more], reason))
    if any(isinstance(table.columns[name].type, Integer) for name in key):
        choices.append((key, "the primary key"))
    for order, reason in choices:
        if set(key or [ROWID]) <= set(order) or not clashes(order):
            return order, reason
    if not choices:
        return [], ""
    order, reason = choices[0]
    if last:
        more = [name for name in last if name not in order]
        unsure = "not unique, and the order of rows that share it is unsure"
        return [*order, *more], f"{reason}; {unsure}"
    refused = "not unique: rows of a session share it, and memctl refuses such an order"
    return order, f"{reason}; {refused}"


def _clash(
    connection: Connection,
    table: Table,
    columns: Mapping[str, str | list[str]],
    names: list[str],
    *,
    filled: bool = False,
) -> bool:
    """Return whether two rows of a session have the same values in the columns ``names``.

    With ``filled``, rows whose values are NULL or empty do not count.
    """
    of = [table.columns[str(columns[role])] for role in ("session", "user") if role in columns]
    values = [table.columns[name] for name in names]
    groups = select(func.count()).select_from(table).group_by(*of, *values)
    if filled:
        groups = groups.where(*(cast(one, String) != "" for one in values))
    groups = groups.having(func.count() > 1).limit(1)
    return connection.execute(groups).first() is not None
