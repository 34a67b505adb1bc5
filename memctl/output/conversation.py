"""Conversations and facts for people: senders, folded tool calls, marks as tags, ages of facts."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.styled import Styled
from rich.text import Text

from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.dialects.fact import FACT
from memctl.dialects.live import tags
from memctl.dialects.view import (
    READABLE,
    Block,
    CallNames,
    Dialect,
    HintBlock,
    MediaBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    ToolResultBlock,
    UnknownBlock,
)
from memctl.json import jsonio
from memctl.location import visible
from memctl.model import Memory, MemoryKey, StoredMessage
from memctl.text.numbers import count, duration, size

FOLDED = 120
"""The maximum number of columns of a folded tool call or result."""

GLANCE = 4096
"""The characters of a tool call or result that are read to fold it."""

INDENT = "   "
"""The indentation of the lines of a message."""

ROLE_STYLES = {"user": "bold green", "assistant": "bold blue", "system": "bold magenta"}
StyleOf = Callable[[str, str], str]
"""Returns the style of a speaker from its role and its name."""


def role_style(role: str, _: str) -> str:
    """Return the style of a role, whoever speaks."""
    return ROLE_STYLES.get(role, "bold")


class Extent(NamedTuple):
    """The limits to which a message is drawn.

    ``text`` is the maximum number of characters of a text, and ``rest`` says where the rest is.
    With ``unfolded``, tool calls, tool results and thinking are drawn whole.  Long texts of a
    message above ``parsed`` bytes are left out.
    """

    text: int = READABLE
    rest: str = "--format json has all"
    unfolded: bool = False
    parsed: int | None = None


_INSPECTED = Extent()


class _Lines:
    """A text that Rich wraps; the parts of a wrapped line keep the indentation of the line."""

    def __init__(self, text: Text, first: str = INDENT) -> None:
        self._text = text
        self._first = first

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        overflow = options.overflow or "fold"
        first = self._first
        for line in self._text.split("\n", allow_blank=True):
            own = _leading(line.plain, options.max_width // 4)
            room = max(options.max_width - len(INDENT + own), 1)
            rest = line[len(own) :] if own else line
            for part in rest.wrap(console, room, overflow=overflow, no_wrap=options.no_wrap):
                yield Text(first + own) + part if part else part
                first = INDENT


def _leading(line: str, most: int) -> str:
    return line[: min(len(line) - len(line.lstrip(" ")), most)]


def title(key: MemoryKey) -> Text:
    """Return the heading of a memory: user, session and part, as far as they are not empty."""
    names = [visible(name) for name in key[:2] if name] or ["''"]
    text = Text(f"── {' / '.join(names)}", "bold")
    if key.part:
        text.append(f" ({visible(key.part)})")
    return text


def heading(memory: Memory) -> RenderableType:
    """Return the heading of a memory with its time to expiry, and its summary below."""
    text = title(memory.key)
    if memory.ttl is not None:
        text.append(f"  expires in {duration(memory.ttl)}", "not bold dim")
    parts = [_Lines(text, "")]
    if memory.summary:
        parts.append(_body(memory.summary, _INSPECTED, "italic"))
    return Group(*parts)


def message(
    entry: StoredMessage,
    number: int,
    *,
    ids: bool = False,
    tokens: int | None = None,
    fault: str = "",
    unread: str = "",
    dialect: Dialect = AGENTSCOPE1,
    extent: Extent = _INSPECTED,
    calls: CallNames | None = None,
    style_of: StyleOf = role_style,
) -> RenderableType:
    """Draw a message: a line with sender, time and marks, then its blocks.

    ``number`` is its position in the memory, from 1.  ``calls`` are those of the messages before.
    ``ids`` shows its id.  ``tokens`` is shown unless it is None.  ``fault`` is the reason why
    AgentScope cannot load the message, and is shown unless it is empty.  A message is dim if there
    is a reason why the framework does not read it: ``unread``.
    """
    shown = jsonio.pruned(entry.message)
    outlined = extent.parsed is not None and len(shown) > extent.parsed
    view = dialect.outline(shown) if outlined else dialect.parse(shown)
    role = "?" if view.role is None else view.role
    text = Text()
    text.append(f"#{number} ", "dim")
    speaker = role if view.name is None else view.name
    text.append(visible(speaker), style_of(role, speaker))
    when = visible(view.time or "")
    text.append(f" ({visible(role)})" + (f"  {when}" if when else ""), "dim")
    for mark in tags(entry.marks, unread):
        text.append("  ")
        text.append(f"[{visible(mark)}]", "yellow")
    if ids:
        text.append(f"  {visible(entry.id)}", "cyan")
    if tokens is not None:
        text.append(f"  {count(tokens, 'token')}", "dim")
    if shown is not entry.message:
        text.append("  more values than are shown", "yellow")
    if outlined:
        text.append(f"  {size(len(shown))}, long texts left out", "yellow")
    if fault:
        text.append(f"  AgentScope cannot load it: {visible(fault)}", "bold red")
    blocks = (calls or CallNames()).given_to(view.blocks)
    drawn = Group(_Lines(text, ""), *(_block(block, extent) for block in blocks))
    return Styled(drawn, "dim") if unread else drawn


def fact(
    entry: StoredMessage, number: int, *, ids: bool = False, extent: Extent = _INSPECTED
) -> RenderableType:
    """Draw a fact: a line with its time and age, then its text, entities and metadata.

    ``number`` is its position in the memory, from 1.  ``ids`` shows its id.
    """
    view = FACT.outline(entry.message)
    text = Text()
    text.append(f"#{number}", "dim")
    if view.time is not None:
        text.append(f"  {visible(view.time)}", "dim")
    if (moment := view.moment) is not None:
        age = (datetime.now() - moment).total_seconds()
        text.append(f"  {duration(age)} ago" if age >= 0 else f"  in {duration(-age)}", "dim")
    if ids:
        text.append(f"  {visible(entry.id)}", "cyan")
    parts = [_Lines(text, ""), *(_block(block, extent) for block in view.blocks)]
    if view.fault:
        parts.append(_Lines(Text(view.fault, "bold red")))
    entities = [one.get("text") for one in view.entities]
    if entities:
        parts.append(_line("entities", fold(", ".join(map(str, entities))), "cyan"))
    if view.metadata:
        shown = json.dumps(view.metadata, ensure_ascii=False)
        parts.append(_line("metadata", fold(shown), "cyan"))
    return Group(*parts)


def _block(block: Block, extent: Extent) -> RenderableType:
    match block:
        case TextBlock(text):
            return _body(text, extent)
        case ThinkingBlock(text) if extent.unfolded:
            return Group(_line("thinking", "", "dim italic"), _body(text, extent, "dim italic"))
        case ThinkingBlock(text):
            return _line("thinking", fold(text), "dim italic")
        case ToolCallBlock(_, name, given) if extent.unfolded:
            shown = json.dumps(given, ensure_ascii=False, indent=2)
            return Group(_line(f"→ {visible(name)}", "", "cyan"), _body(shown, extent, "dim"))
        case ToolResultBlock(_, name, output) if extent.unfolded:
            said = _said(output)
            head = _line(f"← {visible(name)}", count(len(said), "character"), "cyan")
            return Group(head, _body(said, extent, "dim"))
        case _:
            return _line(*describe(block), "cyan")


def describe(block: Block) -> tuple[str, str]:
    """Return the kind of a block, and the beginning of its content on one line."""
    match block:
        case TextBlock(text):
            return "text", fold(text)
        case ThinkingBlock(text):
            return "thinking", fold(text)
        case HintBlock(text):
            return "hint", fold(text)
        case ToolCallBlock(_, name, given):
            return f"→ {visible(name)}", fold(json.dumps(given, ensure_ascii=False))
        case ToolResultBlock(_, name, output):
            said = _said(output)
            return f"← {visible(name)}", f"{count(len(said), 'character')}  {fold(said)}"
        case MediaBlock():
            return block.kind, media(block)
        case UnknownBlock(kind, None):
            return visible(kind), ""
        case _:
            return visible(block.kind), fold(json.dumps(block.value, ensure_ascii=False))


def _said(output: list[Block]) -> str:
    """Return what a tool answered, as text; media and other blocks are described."""
    return "\n".join(
        one.text if isinstance(one, TextBlock) else " ".join(describe(one)) for one in output
    )


def media(block: MediaBlock) -> str:
    """Return the URL of an image, audio, video or file; for embedded data, their type and size."""
    if block.url is not None or block.media_type is None:
        return fold(block.url or "")
    return f"{visible(block.media_type)}, {size(block.size)}"


def fold(text: str) -> str:
    """Return a text on one line of at most ``FOLDED`` columns, with control characters visible."""
    line = visible(" ".join(text[:GLANCE].split()))
    if len(text) <= GLANCE and cell_len(line) <= FOLDED:
        return line
    return set_cell_size(line, min(cell_len(line), FOLDED - 1)).rstrip() + "…"


def _line(label: str, said: str, style: str) -> _Lines:
    text = Text()
    text.append(label, style)
    text.append(f"  {said}")
    return _Lines(text)


def _body(text: str, extent: Extent, style: str = "") -> _Lines:
    more = len(text) - extent.text
    if more > 0:
        text = f"{text[: extent.text]}\n… and {count(more, 'character')} more: {extent.rest}"
    return _Lines(Text("\n".join(visible(line) for line in text.split("\n")), style))
