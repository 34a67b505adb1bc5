"""Formats that memctl recognizes and does not read: the name of each, and what to do instead.

A store that cannot read a JSON document, JSON lines, SQL tables or Redis keys looks here for the
name of the format.  The store then refuses with the name and the hint of the format.  A new format
is a new entry of ``FORMATS``; no command or store changes::

    ForeignFormat(
        "a tape of Robby",
        document=lambda value: isinstance(value, dict) and "tape" in value,
    )
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from memctl.errors import BadData
from memctl.json import jsonio
from memctl.json.scan import BYTE_ORDER_MARK, before_last_character
from memctl.location import visible
from memctl.storekit import files

BEGINNING = 256 * 1024
"""The number of bytes of a file or value that are read to recognize a format."""
_LINES = 20
"""The number of lines of a file that are tested: the first lines may describe the file."""
_TO_JSONL = (
    "convert it to OpenAI chat messages (.jsonl): docs/stores/other-formats.md has a command"
)
_OF_MEM0 = (
    "for facts of mem0, name its configuration: mem0:CONFIG.json; for a vector store of LangChain, "
    "an alias with factory"
)
_OF_MEM0_JS = (
    "memctl reads the facts of mem0's library for Python: read these with getAll() of the library, "
    "and add them there"
)
_OF_AGENT = (
    "name the folder of the agent: memctl inspect {}:FOLDER; or convert it to OpenAI chat messages "
    "(.jsonl): docs/stores/other-formats.md has a command"
)
_NAMED_KEYS = 5

Test = Callable[[Any], bool]


class ForeignFormat(Struct, frozen=True):
    """A format that memctl recognizes and does not read."""

    name: str
    """A noun phrase, such as ``an export of ChatGPT``."""
    hint: str = _TO_JSONL
    """What the user can do instead, as the hint of an error."""
    document: Test | None = None
    """The test of a JSON document; the end of the document may be missing."""
    line: Test | None = None
    """The test of the JSON value of one line in a file of JSON lines."""
    tables: Mapping[str, frozenset[str]] | None = None
    """The required columns by table name; ``*`` stands for any name, ``[]`` for arrays of JSON."""
    keys: re.Pattern[bytes] | None = None
    """A pattern for the beginning of a key in Redis, without the prefix of the store."""
    prefix: str = ""
    """The prefix with which memctl opens the path as a store; empty if it cannot."""

    def refusal(self, label: str, kind: type[BadData] = BadData) -> BadData:
        """Return the error for the store ``label`` whose contents have this format."""
        if self.prefix:
            store = shlex.quote(f"{self.prefix}{label}")
            return kind(f"{label} holds {self.name}", f"memctl inspect {store}")
        return kind(f"{label} holds {self.name}, which memctl does not read", self.hint)


def of_document(value: Any) -> ForeignFormat | None:
    """Return the foreign format of a JSON document; None if memctl recognizes no foreign format.

    For a truncated document, pass the value that ``beginning`` returns.
    """
    return next((one for one in FORMATS if one.document and one.document(value)), None)


def of_line(value: Any) -> ForeignFormat | None:
    """Return the foreign format of JSON lines, recognized by one line; None if there is none.

    ``value`` is the JSON value of the line.
    """
    if isinstance(value, list):  # a list is a document on one line
        return of_document(value)
    return next((one for one in FORMATS if one.line and one.line(value)), None)


def of_tables(tables: Mapping[str, Collection[str]]) -> dict[str, ForeignFormat]:
    """Return the foreign formats in a database, by the names of the tables that have them.

    ``tables`` maps the names of all tables of the database to their columns.
    """
    found: dict[str, ForeignFormat] = {}
    for one in FORMATS:
        of = {
            name: {
                there
                for there, columns in tables.items()
                if name in ("*", there.lower()) and wanted <= {column.lower() for column in columns}
            }
            for name, wanted in (one.tables or {}).items()
        }
        if of and all(of.values()):
            found |= dict.fromkeys(sorted(set().union(*of.values())), one)
    return found


def of_key(key: bytes) -> ForeignFormat | None:
    """Return the foreign format of a key in Redis, or None if memctl recognizes none.

    ``key`` is without the prefix of the store.
    """
    return next((one for one in FORMATS if one.keys and one.keys.match(key)), None)


def of_file(path: Path) -> ForeignFormat | None:
    """Return the foreign format of a file, or None if memctl recognizes none.

    The result is also None if the file is unreadable or not a regular file.
    """
    return of_text(start_of(path))


def start_of(path: Path) -> bytes:
    """Return the first ``BEGINNING`` bytes of a file, as ``storekit.files.start_of``."""
    return files.start_of(path, BEGINNING)


def encoding_of(start: bytes) -> ForeignFormat | None:
    """Return a foreign format that names the encoding of a JSON text; None if it may be UTF-8.

    ``start`` holds the first bytes of the text.
    """
    for encoding, opening in _ENCODINGS.items():
        if start.startswith(opening):
            return _not_utf8(f"a text in {encoding}", encoding)
    start = start.removeprefix(BYTE_ORDER_MARK)
    if start.isascii() or not start.lstrip().startswith((b"{", b"[")):
        return None
    # A damaged text in UTF-8 has many valid characters; a text in Latin-1 has hardly any.
    whole = re.sub(rb"[\xed][\xa0-\xbf][\x80-\xbf]", b"", start).decode("utf-8", "ignore")
    found = _not_utf8("a text in another encoding than UTF-8", "WINDOWS-1252")
    return found if whole.isascii() else None


def _not_utf8(name: str, encoding: str) -> ForeignFormat:
    return ForeignFormat(name, f"convert it: iconv -f {encoding} -t UTF-8 FILE > NEW-FILE")


_ENCODINGS = {
    "UTF-32": (b"\xff\xfe\0\0", b"\0\0\xfe\xff"),
    "UTF-32LE": (b"{\0\0\0", b"[\0\0\0"),
    "UTF-32BE": (b"\0\0\0{", b"\0\0\0["),
    "UTF-16": (b"\xff\xfe", b"\xfe\xff"),
    "UTF-16LE": (b"{\0", b"[\0"),
    "UTF-16BE": (b"\0{", b"\0["),
}
"""The first bytes of a JSON text or a byte order mark, by the encoding's name for iconv."""


def of_text(start: bytes) -> ForeignFormat | None:
    """Return the foreign format of a JSON document or of JSON lines, or None if memctl knows none.

    ``start`` holds the first bytes of the text.
    """
    if found := encoding_of(start):
        return found
    lines = _values(start)
    if len(lines) > 1:
        conversations = _CONVERSATIONS if _is_conversation(lines[0]) else None
        return next(filter(None, map(of_line, lines)), conversations)
    value = beginning(start)
    return of_document(value) or of_line(value)


def of_lines(start: bytes) -> ForeignFormat | None:
    """Return the foreign format of a file that should hold JSON lines; None if there is none.

    ``start`` holds the first bytes of the file.
    """
    if found := encoding_of(start.partition(b"\n")[0]):
        return found
    if lines := _values(start):
        if _is_conversation(lines[0]):  # errors in later lines are reported with the line
            del lines[1:]
        return next(filter(None, map(of_line, lines)), None)
    is_whole = b"\n" in start.rstrip()  # then the first line is whole, and not JSON
    return of_document(beginning(start)) if is_whole else of_line(beginning(start))


def of_first_line(line: bytes) -> ForeignFormat | None:
    """Return the foreign format of JSON lines, recognized by the first line; None if there is none.

    ``line`` is the first line, or the beginning of it.
    """
    if found := encoding_of(line):
        return found
    value = beginning(line)
    return of_line(value) or (_CONVERSATIONS if _is_conversation(value) else None)


def _values(start: bytes) -> list[Any]:
    """Return the JSON values of the first lines, up to a line that is no object or array."""
    found: list[Any] = []
    for line in start.removeprefix(BYTE_ORDER_MARK).splitlines()[:_LINES]:
        if line.strip():
            value = None
            with suppress(ValueError):
                value = jsonio.loads(line)
            if not isinstance(value, dict | list):
                break
            found.append(value)
    return found


_ESCAPE = re.compile(rb"\\(u[0-9a-fA-F]{0,3})?$")
"""An incomplete escape at the end of a text."""
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|["{}\[\],]', re.DOTALL)
_CLOSING = {b"{": b"}", b"[": b"]"}


def beginning(text: bytes) -> Any:
    """Return the value of a JSON text, which may be truncated; None if the text is not JSON.

    A truncated text is read up to the end of its last complete part.
    """
    text = text.removeprefix(BYTE_ORDER_MARK)
    with suppress(ValueError):
        return jsonio.loads(text)
    closing = whole = b""
    end = 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case b'"':  # an incomplete string
                with suppress(ValueError):
                    cut = text[: before_last_character(text, token.end())]
                    return jsonio.loads(_ESCAPE.sub(b"", cut) + b'"' + closing)
                break
            case b"{" | b"[" as bracket:
                closing = _CLOSING[bracket] + closing
                end, whole = token.end(), closing
            case b"}" | b"]":
                closing = closing[1:]
                end, whole = token.end(), closing
                if not closing:
                    break
            case b",":
                end, whole = token.start(), closing
    with suppress(ValueError):
        return jsonio.loads(text[:end] + whole)
    return None


def described(value: Any) -> str:
    """Describe a JSON value for an error, such as ``an object with the keys 'a', 'b'``."""
    match value:
        case dict():
            names = [repr(visible(name)) for name in list(value)[:_NAMED_KEYS]]
            more = ", ..." if len(value) > _NAMED_KEYS else ""
            word = "key" if len(value) == 1 else "keys"
            return f"an object with the {word} {', '.join(names)}{more}" if names else "an object"
        case list():
            return f"a list of {described(value[0])}, ..." if value else "an empty list"
        case str():
            return "a text"
        case None:
            return "null"
        case _:
            return "a number" if isinstance(value, int | float) else "something else"


def _first(*path: str | int) -> Callable[[Any], Any]:
    """Return a function that returns the value at a path of keys and indexes, or None."""

    def get(value: Any) -> Any:
        for step in path:
            if isinstance(step, str) and isinstance(value, dict):
                value = value.get(step)
            elif isinstance(step, int) and isinstance(value, list) and len(value) > step:
                value = value[step]
            else:
                return None
        return value

    return get


def _has(*keys: str, at: tuple[str | int, ...] = ()) -> Test:
    """Return a test whether the object at the path ``at`` has ``keys``."""
    get = _first(*at)

    def test(value: Any) -> bool:
        found = get(value)
        return isinstance(found, dict) and found.keys() >= set(keys)

    return test


def _is(wanted: Any, *path: str | int) -> Test:
    """Return a test whether the value at a path is ``wanted``."""
    get = _first(*path)
    return lambda value: bool(get(value) == wanted)


def _any(*tests: Test) -> Test:
    return lambda value: any(test(value) for test in tests)


def _all(*tests: Test) -> Test:
    return lambda value: all(test(value) for test in tests)


def _items(*tests: Test) -> Test:
    """Return a test whether one of the first items of a list passes a test."""
    return lambda value: (
        isinstance(value, list) and any(test(one) for one in value[:_LINES] for test in tests)
    )


def is_java_state(value: Any) -> bool:
    """Return whether a session state has roles in upper case, as AgentScope Java writes them."""
    for path in (("memory", "messages", 0, "role"), ("context", 0, "role"), (0, "role"), ("role",)):
        role = _first(*path)(value)
        if isinstance(role, str) and role in ("USER", "ASSISTANT", "SYSTEM", "TOOL"):
            return True
    return isinstance(_first("memory", "messages")(value), list)


_PYDANTIC = _all(_has("kind", "parts"), _any(_is("request", "kind"), _is("response", "kind")))
_MESSAGE = _has("role", "content")
_AGENTSCOPE = _has("role", "content", "name", "timestamp")
_is_conversation = _has("role", at=("messages", 0))

FORMATS: tuple[ForeignFormat, ...] = (
    # Sessions of AgentScope Java, outside of a folder of sessions
    ForeignFormat(
        "a file of a session of AgentScope Java",
        "name the folder that holds USER/SESSION/agent_state.json: agentscope-java:FOLDER; in a "
        "folder of version 1, move the folders of sessions to __anon__/, where version 2 looks",
        document=is_java_state,
        line=is_java_state,
    ),
    # Transcripts of coding agents
    ForeignFormat(
        "a transcript of Claude Code",
        _OF_AGENT.format("claude-code"),
        line=_any(
            _has("sessionId", "uuid", "message"),
            _has("summary", "leafUuid"),
            _has("snapshot", "messageId"),
            _has("type", "operation", "sessionId"),
        ),
    ),
    ForeignFormat(
        "a transcript of Codex",
        _OF_AGENT.format("codex"),
        line=_any(
            _has("timestamp", "type", "payload"),
            _has("id", "timestamp", "instructions"),
        ),
    ),
    ForeignFormat(
        "a session that OpenCode exports or imports",
        "opencode import takes it; name the folder of OpenCode: opencode:FOLDER",
        document=_all(_has("info", "messages"), _has("info", "parts", at=("messages", 0))),
    ),
    ForeignFormat(
        "sessions that Hermes imports",
        "SessionDB.import_sessions takes them; name the folder of Hermes: hermes:FOLDER",
        document=_items(_has("source", "started_at", "messages")),
    ),
    ForeignFormat(
        "a session of Gemini CLI",
        document=_any(_has("sessionId", "projectHash"), _items(_has("sessionId", "messageId"))),
        line=_has("sessionId", "projectHash"),
    ),
    ForeignFormat(
        "a session of Continue",
        document=_has("message", "contextItems", at=("history", 0)),
    ),
    ForeignFormat(
        "a chat of GitHub Copilot",
        document=_has("requests", "responderUsername"),
    ),
    ForeignFormat(
        "the database of Cursor",
        "export the chats in Cursor; memctl reads OpenAI chat messages (.jsonl)",
        tables={"cursordiskkv": frozenset({"key", "value"}), "itemtable": frozenset()},
    ),
    # Exports of chat applications
    ForeignFormat(
        "an export of ChatGPT",
        document=_any(_items(_has("mapping")), _has("mapping", "current_node")),
        line=_has("mapping", "current_node"),
    ),
    ForeignFormat(
        "an export of claude.ai",
        document=_any(_items(_has("chat_messages")), _has("chat_messages")),
        line=_has("chat_messages"),
    ),
    ForeignFormat(
        "an export of Open WebUI",
        document=_any(
            _items(_has("history", at=("chat",)), _has("messages", at=("chat",))),
            _has("history", at=("chat",)),
        ),
        line=_has("history", at=("chat",)),
    ),
    ForeignFormat(
        "the database of Open WebUI",
        "export the chats in Open WebUI (Settings, Data Controls), and convert that file to OpenAI "
        "chat messages (.jsonl): docs/stores/other-formats.md has a command",
        tables={"chat": frozenset({"id", "user_id", "title", "chat"}), "auth": frozenset()},
    ),
    ForeignFormat(
        "an export of LibreChat",
        document=_has("isCreatedByUser", at=("messages", 0)),
    ),
    ForeignFormat(
        "a conversation of LM Studio",
        document=_has("versions", at=("messages", 0)),
    ),
    ForeignFormat(
        "a trajectory of an agent (ATIF)",
        "memctl reads it: atif:PATH",
        document=_has("schema_version", "steps"),
        line=_has("schema_version", "steps"),
        prefix="atif:",
    ),
    # Stores of other frameworks
    ForeignFormat(
        "a configuration of mem0",
        document=_any(
            _has("provider", at=("vector_store",)),
            _has("provider", at=("embedder",)),
            _has("history_db_path"),
        ),
        prefix="mem0:",
    ),
    ForeignFormat(
        "a SimpleChatStore of LlamaIndex",
        document=_any(_is("SimpleChatStore", "class_name"), _has("chat_store", "class_name")),
    ),
    ForeignFormat(
        "sessions of LlamaIndex's PostgresChatStore, each an array in one row",
        "read them with get_messages() of the class, and add them to a SQLAlchemyChatStore, which "
        "memctl reads",
        tables={"*": frozenset({"id", "key", "value[]"})},
    ),
    ForeignFormat(
        "messages of Microsoft Agent Framework",
        "read them with get_messages() of RedisHistoryProvider, and write them as OpenAI chat "
        "messages (.jsonl)",
        keys=re.compile(rb"chat_messages[:|]"),
    ),
    ForeignFormat(
        "the history of QwenPaw: turns that left the context",
        "the session files have the rest (agentscope2:FOLDER); docs/stores/other-formats.md has a "
        "command that converts the texts here",
        tables={
            "conversation_history": frozenset(
                {"session_id", "kind", "role", "content", "tool_call_id", "blocks", "dedup_key"}
            )
        },
    ),
    ForeignFormat(
        "an agent file of Letta (.af)",
        document=_all(_has("agents", "blocks"), _has("messages", at=("agents", 0))),
    ),
    ForeignFormat(
        "a chat history of Semantic Kernel",
        document=_any(_has("items", at=("messages", 0)), _has("Items", at=(0,))),
        line=_has("items", at=("messages", 0)),
    ),
    ForeignFormat(
        "the state of an AutoGen agent or team",
        document=_any(
            _has("llm_context"),
            _has("agent_states"),
            _has("source", "type", "content", at=("messages", 0)),
        ),
    ),
    ForeignFormat(
        "a chat of the Vercel AI SDK",
        document=_any(_has("role", "parts", at=("messages", 0)), _items(_has("role", "parts"))),
        line=_any(_has("role", "parts", at=("messages", 0)), _has("role", "parts")),
    ),
    ForeignFormat(
        "messages of Pydantic AI",
        document=_items(_PYDANTIC),
        line=_PYDANTIC,
    ),
    ForeignFormat(
        "messages of Haystack",
        document=_any(
            _items(_has("_role", "_content"), _has("role", "meta", "content")),
            _has("_role", "_content", at=("messages", 0)),
        ),
        line=_has("_role", "_content"),
    ),
    ForeignFormat(
        "the messages of LangChain",
        "FileChatMessageHistory writes such files: name it langchain:PATH",
        document=_items(_has("type", "data")),
        line=_all(_has("type", "data"), _has("content", at=("data",))),
    ),
    ForeignFormat(
        "runs or a dataset of LangSmith",
        document=_items(_has("inputs", "outputs")),
        line=_has("inputs", "outputs"),
    ),
    ForeignFormat(
        "a memory of CrewAI",
        "CrewAI keeps results of tasks, no conversations: there is nothing that memctl reads",
        tables={"long_term_memories": frozenset({"task_description", "metadata", "score"})},
    ),
    ForeignFormat(
        "a tracker store of Rasa",
        "export the trackers with 'rasa export'; memctl reads OpenAI chat messages (.jsonl)",
        tables={"events": frozenset({"sender_id", "type_name", "intent_name", "action_name"})},
    ),
    ForeignFormat(
        "sessions of google-adk up to 1.21, whose events are pickled",
        "migrate them with ADK: adk migrate session --source_db_url URL --dest_db_url NEW_URL",
        tables={
            "events": frozenset({"app_name", "user_id", "session_id", "author", "actions"}),
            "sessions": frozenset({"app_name", "user_id", "id", "state"}),
        },
    ),
    ForeignFormat(
        "the storage of Mastra",
        "write its messages as OpenAI chat messages (.jsonl)",
        tables={"mastra_threads": frozenset(), "mastra_messages": frozenset({"thread_id"})},
    ),
    ForeignFormat(
        "the long-term store of LangGraph",
        "its items are no conversations; memctl reads the checkpoints of LangGraph",
        tables={
            "store": frozenset({"prefix", "key", "value", "created_at", "updated_at"}),
            "store_migrations": frozenset({"v"}),
        },
    ),
    ForeignFormat(
        "the checkpoints of LangGraph in Redis",
        "memctl reads those of SqliteSaver and PostgresSaver",
        keys=re.compile(rb"checkpoint(_latest|_write|_blob)?:"),
    ),
    # Parts of long-term memory
    ForeignFormat(
        "the history of mem0, one part of its memory",
        _OF_MEM0,
        tables={"history": frozenset({"memory_id", "old_memory", "new_memory", "event"})},
    ),
    ForeignFormat(
        "the facts of mem0's TypeScript library",
        _OF_MEM0_JS,
        tables={
            "vectors": frozenset({"id", "vector", "payload"}),
            "memory_migrations": frozenset({"user_id"}),
        },
    ),
    ForeignFormat(
        "the history of mem0's TypeScript library",
        _OF_MEM0_JS,
        tables={
            "memory_history": frozenset({"memory_id", "previous_value", "new_value", "action"}),
            "messages": frozenset({"session_scope", "role", "content"}),
        },
    ),
    ForeignFormat(
        "the collections of Qdrant",
        _OF_MEM0,
        document=_has("collections", "aliases"),
    ),
    ForeignFormat(
        "the collections of Chroma",
        _OF_MEM0,
        tables={
            "collections": frozenset({"id", "name"}),
            "embedding_metadata": frozenset({"id", "key", "string_value"}),
        },
    ),
    # Files for training
    ForeignFormat(
        "ShareGPT conversations",
        document=_any(
            _items(_has("conversations")), _has("from", "value", at=("conversations", 0))
        ),
        line=_any(_has("conversations"), _has("from", "value")),
    ),
    ForeignFormat(
        "a dataset of Gemini or Vertex AI",
        document=_any(_has("role", "parts", at=("contents", 0)), _items(_has("contents"))),
        line=_has("role", "parts", at=("contents", 0)),
    ),
    ForeignFormat(
        "a batch of OpenAI requests",
        line=_has("custom_id", "body"),
    ),
    ForeignFormat(
        "a dataset of prompts and answers",
        document=_items(
            _has("prompt", "completion"), _has("instruction", "output"), _has("chosen", "rejected")
        ),
        line=_any(
            _has("prompt", "completion"), _has("instruction", "output"), _has("chosen", "rejected")
        ),
    ),
    # General formats come last: the first match counts.
    ForeignFormat(
        "a list of messages of the OpenAI Assistants API",
        document=_all(_is("list", "object"), _has("data")),
    ),
    ForeignFormat(
        "a dialog of ReMe",
        "open the vault that it is in: reme:FOLDER",
        line=_is("__state__", "name"),
    ),
    ForeignFormat(
        "a JSON document with one conversation",
        "write it into one line of a .jsonl file: jq -c . FILE.json > FILE.jsonl",
        document=_is_conversation,
    ),
    ForeignFormat(
        "a JSON document with a list of conversations",
        "write each into a line of a .jsonl file: jq -c '.[]' FILE.json > FILE.jsonl",
        document=_items(_is_conversation),
    ),
    ForeignFormat(
        "a JSON document with a list of AgentScope's messages",
        "make a state_dict of it: jq '{content: .}' FILE.json > STATE.json",
        document=_items(_AGENTSCOPE),
    ),
    ForeignFormat(
        "one message of AgentScope a line",
        "make a state_dict of it: jq -s '{content: .}' FILE > STATE.json",
        line=_AGENTSCOPE,
    ),
    ForeignFormat(
        "a JSON document with a list of messages",
        "write it into one line of a .jsonl file: jq -c '{messages: .}' FILE.json > FILE.jsonl",
        document=_items(_MESSAGE),
    ),
    ForeignFormat(
        "one message a line",
        "write its lines into one conversation: jq -sc '{messages: .}' FILE > NEW.jsonl",
        line=_MESSAGE,
    ),
)
"""All foreign formats that memctl recognizes; the first that matches is reported."""
_CONVERSATIONS = ForeignFormat(
    "OpenAI chat messages without the extension .jsonl", "give it that extension"
)
"""Conversations in a file without the extension ``.jsonl``, by which memctl would read them."""
