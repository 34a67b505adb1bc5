"""Large contents that leave a message come back byte for byte, whatever the message holds."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import memctl.ops.offload.slim
from memctl.dialects.adk import ADK
from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.dialects.agentscope2 import AGENTSCOPE2
from memctl.dialects.langchain import LANGCHAIN
from memctl.dialects.llamaindex import LLAMAINDEX
from memctl.dialects.openai import OPENAI
from memctl.dialects.openai_agents import OPENAI_AGENTS
from memctl.dialects.registry import DIALECTS
from memctl.dialects.rows import ROLE_CONTENT, RowDialect, utc
from memctl.dialects.view import (
    Dialect,
    MediaBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from memctl.errors import BadData
from memctl.journal.runs import Run
from memctl.json import jsonio
from memctl.json import located as json_located
from memctl.model import Page, StoredMessage
from memctl.ops.change.change import RunOptions
from memctl.ops.offload import pieces
from memctl.ops.offload.blobs import Blobs
from memctl.ops.offload.migrated import restored_in, with_texts
from memctl.ops.offload.references import names_in, origins
from memctl.ops.offload.run import OffloadRun, RehydrateRun
from memctl.ops.offload.slim import Blob, Fetch, Rule, restored, slim, tokens
from memctl.selection import Selection
from memctl.storekit.edits import Snapshot
from tests.properties.strategies import any_text
from tests.properties.test_conversion import MEMORY, convert, plain
from tests.properties.test_frameworks import again

pytestmark = pytest.mark.slow

WAYS: list[Dialect] = [AGENTSCOPE2, LANGCHAIN, LLAMAINDEX, ADK, OPENAI, ROLE_CONTENT]
"""The dialects from which messages of AgentScope 1.x come back exactly."""
SERVED = [one for one in DIALECTS.values() if one.offloads]
RECORD = Run("", "offload", "", "", {}, False)
MOMENT = datetime(2026, 1, 2, 3, 4, 5)
LARGER = 1200
PREFIX = "https://blobs.example.com/a b/"
HARD = ["\0", "\ud83d", "\udc00", '"', "\\", "\\u0041", "😀", "שלום", "\u202e", "\u2028", "é", "\n"]
TYPES = [
    *("image/png", "image/jpeg", "image/jpg", "audio/wav", "audio/mp3", "audio/mpeg", "video/mp4"),
    *("application/pdf", "image/x-other", "text/plain; charset=utf-8"),
]

rules = st.builds(
    Rule, st.just(LARGER), st.sampled_from([0, 1, 2, 50, 200]), st.sampled_from(["", PREFIX])
)
short_texts = st.lists(st.sampled_from(HARD) | any_text, max_size=4).map("".join)


@st.composite
def sized_texts(draw: st.DrawFn) -> str:
    """A text of a size in bytes around the limit, or far above."""
    size = draw(st.integers(LARGER - 3, LARGER + 3) | st.sampled_from([2 * LARGER, 20 * LARGER]))
    unit = draw(short_texts) or "x"
    found = draw(st.sampled_from(["", "x", "xx"]))  # the unit begins at any byte
    found += unit * ((size - len(found)) // len(encoded(unit)))
    return found + "y" * (size - len(encoded(found)))


@st.composite
def media(draw: st.DrawFn) -> MediaBlock:
    """Media whose base64 data are of a size around the limit, or far above; sometimes no base64."""
    size = draw(st.integers(LARGER - 6, LARGER + 6) | st.just(9 * LARGER)) * 3 // 4
    data = base64.b64encode(Random(draw(st.integers(0, 9))).randbytes(size)).decode()
    odd = draw(st.sampled_from(["", "", "", "=", "\n", "é", '"']))
    media_type = draw(st.sampled_from(TYPES))
    kind = media_type.partition("/")[0]
    known = kind if kind in ("image", "audio", "video") else "image"
    return MediaBlock(known, None, media_type, data + odd)


results = st.tuples(
    short_texts,
    short_texts,
    st.lists(sized_texts().map(TextBlock) | media(), min_size=1, max_size=3),
).map(lambda made: ToolResultBlock(made[0], made[1], lambda: made[2]))
# A note keeps arguments in the order of their names; most dialects have arguments as a text.
arguments = st.dictionaries(short_texts, sized_texts(), max_size=2).map(
    lambda made: dict(sorted(made.items()))
)
calls = st.tuples(short_texts, short_texts, arguments).map(lambda made: ToolCallBlock(*made))
blocks = st.lists(sized_texts().map(TextBlock) | media() | results | calls, min_size=1, max_size=4)
WRITINGS: dict[str, Callable[[Any], str]] = {
    "spaced": json.dumps,
    "compact": lambda value: json.dumps(value, separators=(",", ":")),
    "raw": lambda value: json.dumps(value, ensure_ascii=False),
    "compact and raw": lambda value: json.dumps(
        value, ensure_ascii=False, separators=(",", ":"), sort_keys=True
    ),
    "indented": lambda value: json.dumps(value, indent=2),
    "slashes": lambda value: json.dumps(value).replace("/", "\\/"),
}


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def written(value: Any, writing: str) -> bytes:
    """Return JSON as a program writes it; lone surrogates are written as they are, or escaped."""
    text = WRITINGS[writing](value)
    return encoded(text) if writing == "raw" else text.encode("utf-8", "backslashreplace")


def _langchain(found: MediaBlock, said: str) -> list[Any]:
    place = f"data:{found.media_type};base64,{found.data}"
    new = {"type": found.kind, "base64": found.data, "mime_type": found.media_type}
    old = {"data": found.data, "mime_type": found.media_type, "source_type": "base64"}
    parts = [new, {"type": found.kind} | old, {"type": "image_url", "image_url": place}, said]
    about = {"tool_call_id": "c1", "name": None, "status": "success"}
    return [
        {"type": "human", "data": {"content": parts[::-1]}},
        {"type": "tool", "data": {"content": said} | about},
        {"type": "tool", "data": {"content": [{"text": said, "type": "text"}, *parts]} | about},
    ]


def _openai(found: MediaBlock, said: str) -> list[Any]:
    place = f"data:{found.media_type};base64,{found.data}"
    parts = [
        {"type": "image_url", "image_url": {"url": place, "detail": "auto"}},
        {"type": "input_audio", "input_audio": {"data": found.data, "format": "wav"}},
        {"type": "file", "file": {"file_data": place, "filename": said[:9]}},
    ]
    return [
        {"role": "user", "content": [*parts, {"type": "text", "text": said}]},
        {"role": "tool", "tool_call_id": "c1", "content": said},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": said}]},
    ]


def _openai_agents(found: MediaBlock, said: str) -> list[Any]:
    place = f"data:{found.media_type};base64,{found.data}"
    parts = [
        {"type": "input_image", "image_url": place, "detail": "auto"},
        {"type": "input_audio", "input_audio": {"data": found.data, "format": "mp3"}},
        {"type": "input_file", "file_data": place, "filename": "a"},
        {"type": "input_text", "text": said},
    ]
    output = {"type": "function_call_output", "call_id": "c1"}
    return [
        {"role": "user", "content": parts},
        output | {"output": said},
        output | {"output": parts},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": said},
    ]


def _llamaindex(found: MediaBlock, said: str) -> list[Any]:
    image = {"block_type": "image", "image": found.data, "image_mimetype": found.media_type}
    text = {"block_type": "text", "text": said}
    file = {"block_type": "document", "data": found.data, "document_mimetype": found.media_type}
    more = {"tool_call_id": "c1", "name": "read"}
    return [
        {"role": "user", "blocks": [image | {"path": None, "url": None}, file, text]},
        {"role": "tool", "blocks": [text, image], "additional_kwargs": more},
        {"role": "tool", "content": said, "additional_kwargs": more},
    ]


def _adk(found: MediaBlock, said: str) -> list[Any]:
    data = (found.data or "").replace("+", "-").replace("/", "_")  # as Google writes base64
    parts = [
        {"inline_data": {"mime_type": found.media_type, "data": found.data}},
        {"inline_data": {"data": data, "mime_type": found.media_type, "display_name": "a"}},
        {"function_response": {"id": "c1", "name": "read", "response": {"output": said}}},
        {"function_response": {"id": "c2", "name": "read", "response": {"a": said, "b": 1}}},
    ]
    return [{"id": "e1", "author": "user", "content": {"role": "user", "parts": parts}}]


def _agentscope(found: MediaBlock, said: str) -> list[Any]:
    source = {"data": found.data, "type": "base64", "media_type": found.media_type}
    output = [{"text": said, "type": "text"}, {"type": "image", "source": source}]
    return [
        [{"source": source, "type": "image"}],  # as PostgreSQL orders keys
        [{"id": "c1", "name": "read", "type": "tool_result", "output": output}],
    ]


SHAPES: dict[str, Callable[[MediaBlock, str], list[Any]]] = {
    "langchain": _langchain,
    "openai": _openai,
    "openai-agents": _openai_agents,
    "llamaindex": _llamaindex,
    "adk": _adk,
    "agentscope1": _agentscope,
    "role-content": _agentscope,
}
"""Contents as programs write them, besides those that memctl makes."""


@st.composite
def messages(draw: st.DrawFn, dialect: Dialect) -> bytes:
    """A message of a dialect, as some program writes it."""
    role = draw(st.sampled_from(["user", "assistant", "system"]))
    if dialect.name in SHAPES and draw(st.booleans()):
        content = draw(st.sampled_from(SHAPES[dialect.name](draw(media()), draw(sized_texts()))))
        value = {"id": "m1", "name": "x", "role": role, "content": content, "metadata": {}}
    elif isinstance(dialect, RowDialect):
        rows = dialect.rows(role, draw(short_texts), utc(MOMENT), draw(blocks))
        value = draw(st.sampled_from(rows))
    else:
        value = jsonio.loads(dialect.author(role, draw(short_texts), draw(blocks), MOMENT)[1])
    return written(value, draw(st.sampled_from(sorted(WRITINGS))))


@st.composite
def memories(draw: st.DrawFn, dialect: Dialect) -> list[StoredMessage]:
    """One or two messages of a memory, as some programs write them."""
    entries = []
    for number in range(draw(st.integers(1, 2))):
        value = jsonio.loads(draw(messages(dialect)))
        id = dialect.with_id(value, f"m{number}")
        entries.append(StoredMessage(id, json.dumps(value).encode()))
    return entries


def fetch(*blobs: Blob) -> Fetch:
    """Return what reads some blobs, in pieces of a few bytes."""
    contents = {blob.name: b"".join(blob.pieces()) for blob in blobs}

    def read(name: str) -> Iterator[bytes]:
        whole = contents[name]
        return (whole[start : start + 100] for start in range(0, len(whole), 100))

    return read


def stays(dialect: Dialect, text: bytes) -> list[Any]:
    """Return what offloading must not change in a message: all but media and the texts of tools."""
    view = dialect.parse(text)
    found: list[Any] = [view.id, view.role, view.name, view.time, view.unread]
    for block in view.blocks:
        match block:
            case ToolResultBlock(id, name):
                found.append((id, name, len(block.output)))
            case ToolCallBlock(id, name, input):
                found.append((id, name, json.dumps(input)))
            case TextBlock(said) if said.startswith("[memctl: "):
                found.append("media")
            case MediaBlock():
                found.append("media")
            case _:
                found.append(block[0])
    return found


def large(dialect: Dialect, text: bytes) -> list[str]:
    """Return the large contents of a message."""
    found = []
    for block in dialect.parse(text).blocks:
        parts = block.output if isinstance(block, ToolResultBlock) else [block]
        for part in parts:
            match part:
                case TextBlock(said) if isinstance(block, ToolResultBlock):
                    found.append(said)
                case MediaBlock(data=str(data)):
                    found.append(data)
    return [one for one in found if len(encoded(one)) > LARGER]


@pytest.mark.parametrize("dialect", SERVED, ids=lambda one: one.name)
@given(st.data(), rules)
def test_offload_comes_back_byte_for_byte(
    dialect: Dialect, data: st.DataObject, rule: Rule
) -> None:
    comes_back(dialect, data.draw(messages(dialect)), rule)


@pytest.mark.parametrize("dialect", SERVED, ids=lambda one: one.name)
@given(st.data(), rules)
def test_offload_of_huge_contents_comes_back(
    dialect: Dialect, data: st.DataObject, rule: Rule
) -> None:
    """Offload contents larger than a piece, with pieces of a few bytes."""
    text = data.draw(messages(dialect))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_located, "HUGE", 400)
        patch.setattr(jsonio, "HUGE", 400)
        patch.setattr(json_located, "_BEGINNING", 100)
        for module in (pieces, memctl.ops.offload.slim):
            patch.setattr(module, "PIECE", 16)
        comes_back(dialect, text, rule)
        found = slim(dialect, text, rule)
        counted = tokens(dialect, text)
    whole = slim(dialect, text, rule)
    assert (found.text, found.left) == (whole.text, whole.left)
    assert counted - tokens(dialect, text) in (0, 1, 2, 3)  # each cut text is rounded up


def comes_back(dialect: Dialect, text: bytes, rule: Rule) -> None:
    found = slim(dialect, text, rule)
    assert len(large(dialect, found.text)) == found.left
    assert restored(dialect, found.text, fetch(*found.blobs)) == text
    assert {blob.name for blob in found.blobs} <= names_in(found.text)
    assert stays(dialect, found.text) == stays(dialect, text)
    assert not dialect.parse(found.text).fault or dialect.parse(text).fault
    again = slim(dialect, found.text, rule)
    assert (again.text, again.blobs, again.left) == (found.text, [], found.left)


@pytest.mark.parametrize("dialect", SERVED, ids=lambda one: one.name)
def test_offload_leaves_no_plain_content(dialect: Dialect) -> None:
    """Media in base64 and texts of tools go, but for what ADK makes of a result with fields."""
    data = base64.b64encode(bytes(range(256)) * 9).decode()
    picture, said = MediaBlock("image", None, "image/png", data), "\0é" * LARGER
    result = ToolResultBlock("c1", "read", lambda: [TextBlock(said), picture])
    values = [{"content": one} for one in SHAPES.get(dialect.name, lambda *_: [])(picture, said)]
    if isinstance(dialect, RowDialect):
        values += dialect.rows("user", "x", None, [picture, result])
    else:
        values += [jsonio.loads(dialect.author("user", "x", [picture, result], MOMENT)[1])]
    for value in values:
        found = slim(dialect, json.dumps(value).encode(), Rule(LARGER, 0, PREFIX))
        assert found.blobs
        assert found.left == (dialect is ADK and "'a': " in str(value))


conversations = st.lists(blocks, min_size=1, max_size=4)


@st.composite
def conversation(draw: st.DrawFn) -> list[StoredMessage]:
    """The messages of a memory of AgentScope 1.x."""
    entries = []
    for number, said in enumerate(draw(conversations)):
        role = draw(st.sampled_from(["user", "assistant", "system"]))
        value = jsonio.loads(AGENTSCOPE1.author(role, "x", said, MOMENT)[1])
        text = written(value | {"id": f"m{number}"}, draw(st.sampled_from(sorted(WRITINGS))))
        entries.append(StoredMessage(f"m{number}", text, ("hint",) if number % 3 == 2 else ()))
    return entries


def without_contents(
    dialect: Dialect, entries: list[StoredMessage], rule: Rule
) -> tuple[list[StoredMessage], list[Blob]]:
    """Return messages without their large contents, and these contents."""
    found = [slim(dialect, one.message, rule) for one in entries]
    blobs = [blob for one in found for blob in one.blobs]
    pairs = zip(entries, found, strict=True)
    return [entry._replace(message=one.text) for entry, one in pairs], blobs


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
@given(conversation(), rules)
def test_offload_and_conversion_and_back(
    way: Dialect, entries: list[StoredMessage], rule: Rule
) -> None:
    """Messages that went through another dialect are rehydrated as if nothing was offloaded."""
    slimmed, blobs = without_contents(AGENTSCOPE1, entries, rule)
    back = [
        one._replace(message=restored(AGENTSCOPE1, one.message, fetch(*blobs)))
        for one in there_and_back(way, slimmed)
    ]
    assert plain(back) == plain(there_and_back(way, entries)) == plain(entries)


def there_and_back(way: Dialect, entries: list[StoredMessage]) -> list[StoredMessage]:
    """Return messages of AgentScope 1.x that were converted, stored, read and converted back."""
    memory, converted = convert(AGENTSCOPE1, way, MEMORY, entries)
    return convert(way, AGENTSCOPE1, memory, again(way, converted))[1]


@given(st.lists(sized_texts(), max_size=3), rules)
def test_offload_texts_come_back_where_they_were_migrated(said: list[str], rule: Rule) -> None:
    """The items of OpenAI's agents have no notes, so they are what they would have been."""
    entries, slimmed, blobs = [], [], []
    for number, one in enumerate(said):
        output = [TextBlock(one)]
        result = ToolResultBlock(f"c{number}", "read", output.copy)
        id, text = AGENTSCOPE1.author("system", "x", [result], MOMENT)
        entries.append(StoredMessage(id, text))
        found = slim(AGENTSCOPE1, text, rule)
        slimmed.append(StoredMessage(id, found.text))
        blobs += found.blobs
    there = convert(AGENTSCOPE1, OPENAI_AGENTS, MEMORY, slimmed)[1]
    back = [restored(OPENAI_AGENTS, one.message, fetch(*blobs)) for one in there]
    wanted = convert(AGENTSCOPE1, OPENAI_AGENTS, MEMORY, entries)[1]
    assert [jsonio.loads(one)["content"] for one in back] == [
        jsonio.loads(one.message)["content"] for one in wanted
    ]


@pytest.mark.parametrize("way", [*WAYS, OPENAI_AGENTS], ids=lambda way: way.name)
@given(conversation(), rules)
def test_offload_comes_back_where_it_was_migrated(
    way: Dialect, entries: list[StoredMessage], rule: Rule
) -> None:
    check_rehydrated(AGENTSCOPE1, way, entries, rule)


@pytest.mark.parametrize("origin", SERVED, ids=lambda one: one.name)
@given(st.data(), rules)
def test_offload_comes_back_in_any_dialect(
    origin: Dialect, data: st.DataObject, rule: Rule
) -> None:
    way = data.draw(st.sampled_from([one for one in SERVED if one is not origin]))
    entries = data.draw(memories(origin))
    assume(not any(has_file(origin, one.message) for one in entries))
    check_rehydrated(origin, way, entries, rule)


def has_file(dialect: Dialect, text: bytes) -> bool:
    """Return whether a message holds media that AgentScope 1.x lacks, and has as a JSON text.

    If such a block comes from a note, the text may have its fields in another order.
    """
    for block in dialect.parse(text).blocks:
        for part in block.output if isinstance(block, ToolResultBlock) else [block]:
            if isinstance(part, MediaBlock) and part.kind not in ("image", "audio", "video"):
                return True
    return False


def check_rehydrated(
    origin: Dialect,
    way: Dialect,
    entries: list[StoredMessage],
    rule: Rule,
) -> None:
    """Check that rehydrated messages are what a migration of whole messages makes, with notes."""
    if way is OPENAI_AGENTS:
        rule = rule._replace(url_prefix="")  # in an answer, a URL becomes a text like any other
    slimmed, blobs = without_contents(origin, entries, rule)
    memory, there = convert(origin, way, MEMORY, slimmed)
    stored = Snapshot(memory, again(way, there))
    wanted = again(way, convert(origin, way, MEMORY, entries)[1])
    named = []

    def restore(one: StoredMessage) -> bytes:
        try:
            return restored(origin, one.message, fetch(*blobs))
        except BadData:
            named.append(one.id)
            return one.message

    found = restored_in(origin, way, stored, restore)
    texts = [text or one.message for one, text in zip(stored.messages, found, strict=True)]
    if way is OPENAI_AGENTS and (named or any(map(origins, texts))):
        return  # without notes, some references are joined with other texts; rehydrate names them
    assert not named
    assert [jsonio.canonical(one) for one in texts] == [
        jsonio.canonical(one.message) for one in wanted
    ]


texts_of_tools = st.lists(
    st.tuples(short_texts, st.lists(sized_texts().map(TextBlock), min_size=1, max_size=2)).map(
        lambda made: ToolResultBlock(made[0], "read", lambda: made[1])
    ),
    min_size=1,
    max_size=2,
)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
@given(st.data(), st.booleans(), rules)
def test_offload_of_migrated_messages_comes_back(
    way: Dialect, data: st.DataObject, has_fields: bool, rule: Rule
) -> None:
    """Messages come back where they came from, with all that only notes keep."""
    entries = []
    for number, said in enumerate(data.draw(st.lists(texts_of_tools, min_size=1, max_size=3))):
        picture = MediaBlock("image", None, "image/png", base64.b64encode(bytes(LARGER)).decode())
        asked = AGENTSCOPE1.author("user", "x", [TextBlock("See."), picture], MOMENT)[1]
        call = AGENTSCOPE1.author("assistant", "x", [ToolCallBlock("c", "read", {})], MOMENT)[1]
        results = AGENTSCOPE1.author("system", "system", said, MOMENT)[1]
        for place, text in enumerate([asked, call, results]):
            id = f"m{number}-{place}"
            value = jsonio.loads(text) | {"id": id} | ({"rated": 5} if has_fields else {})
            entries.append(StoredMessage(id, json.dumps(value).encode()))
    rule = rule._replace(url_prefix=rule.url_prefix.replace(" ", "-"))  # no URL in AgentScope 2.x
    check_migrated(AGENTSCOPE1, way, entries, rule, is_exact=True)


@pytest.mark.parametrize("origin", SERVED, ids=lambda one: one.name)
@given(st.data(), rules)
def test_offload_of_messages_from_any_dialect_comes_back(
    origin: Dialect, data: st.DataObject, rule: Rule
) -> None:
    way = data.draw(st.sampled_from([one for one in SERVED if one is not origin]))
    entries = data.draw(memories(origin))
    check_migrated(origin, way, entries, rule, is_exact=False)


def assume_one_result(dialect: Dialect, entries: list[StoredMessage]) -> None:
    """Assume that no call has several results, of which a note keeps all but the last of ADK."""
    if dialect.last_result_counts:
        blocks = [block for one in entries for block in dialect.parse(one.message).blocks]
        ids = [block.id for block in blocks if isinstance(block, ToolResultBlock)]
        assume(len(ids) == len(set(ids)))


def check_migrated(
    origin: Dialect, way: Dialect, entries: list[StoredMessage], rule: Rule, *, is_exact: bool
) -> None:
    """Check that migrated messages come back where they are, and where they came from.

    There, they are what a migration back makes of them whole; if not ``is_exact``, of some messages
    only the contents come back, or are named.
    """
    memory, there = convert(origin, way, MEMORY, entries)
    there = again(way, there)
    assume_one_result(origin, entries)
    assume_one_result(way, there)
    told = [None] * len(there)
    blobs = [blob for one in there for blob in slim(way, one.message, rule).blobs]
    offload = OffloadRun(RECORD, Selection(), rule, Blobs(""), options=RunOptions())
    texts = offload.texts(way, Page(memory, there), told)
    slimmed = with_texts(way, there, texts)
    get = fetch(*blobs)
    rehydrate = RehydrateRun(RECORD, Selection(), lambda name, _: get(name), options=RunOptions())
    assert rehydrate.texts(way, Page(memory, slimmed), told) == [one.message for one in there]

    wanted = again(origin, convert(way, origin, memory, there)[1])
    memory, back = convert(way, origin, memory, slimmed)
    back = again(origin, back)

    def restore(one: StoredMessage) -> bytes:
        return rehydrate.rewrite(way, one.message, one.id, memory.key)

    found = restored_in(way, origin, Snapshot(memory, back), restore)
    texts = rehydrate.texts(origin, Page(memory, back), list(found))
    whole = [one._replace(message=text) for one, text in zip(back, texts, strict=True)]
    if is_exact:
        assert plain(whole) == plain(wanted)
    elif plain(whole) != plain(wanted):
        assert rehydrate.rewritten.failures or not any(map(origins, texts))


def test_reply_between_results_of_no_call_stays_in_adk() -> None:
    """ADK leaves out replies between two results of one call, and not between other results."""
    result = ToolResultBlock("c", "", lambda: [TextBlock("done")])
    entries = []
    for number, (role, block) in enumerate(
        [("user", result), ("assistant", TextBlock("Booked.")), ("user", result)]
    ):
        value = jsonio.loads(AGENTSCOPE1.author(role, "x", [block], MOMENT)[1])
        entries.append(StoredMessage(f"m{number}", jsonio.dumps(value | {"id": f"m{number}"})))
    assert plain(there_and_back(ADK, entries)) == plain(entries)
