"""``memctl context``: shows the messages that an agent sends to its model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import aclosing
from typing import Annotated, Any, Protocol

from msgspec import Struct
from rich.text import Text

from memctl.commands._context import Run
from memctl.commands._options import (
    PagerOption,
    PathOption,
    SessionOption,
    StoreArgument,
    TokenizerOption,
    UserOption,
    opens_stores,
)
from memctl.commands._parameters import option
from memctl.commands._run import readable, token_counter, wait_for
from memctl.dialects.live import not_read
from memctl.dialects.view import COMPRESSED, CallNames
from memctl.inference.tokens import TokenCounter
from memctl.location import Location, visible
from memctl.model import MemoryInfo
from memctl.ops.compress.transcript import transcribe
from memctl.ops.context import (
    ContextMessage,
    find_memory,
    matches_calls,
    read_context,
    sharing_users,
)
from memctl.ops.copy.missing_summaries import missing_summaries
from memctl.ops.observer import opened
from memctl.output import conversation
from memctl.output.csv_rows import CsvRows
from memctl.output.pager import paged
from memctl.output.printout import Listing, message_json
from memctl.output.terminal import Format, Output
from memctl.registry import make_store
from memctl.selection import Selection
from memctl.store import DamagedMemory, Store
from memctl.text.numbers import count

_NAMED = 3
_UNMATCHED = "unmatched"
"""The reason of calls without a result, results without a call, and messages replaced by others."""


@opens_stores
def context(
    run: Run,
    store: StoreArgument,
    user: UserOption = None,
    session: SessionOption = None,
    everything: Annotated[
        bool, option("--all", "Show all messages, also those that are not sent.")
    ] = False,
    summarizer: TokenizerOption = "extractive",
    path: PathOption = None,
    pager: PagerOption = True,
) -> None:
    """Show what an agent sends to its model.

    Shows the summary, then the messages that the framework sends, with the tokens of each: not
    those that were compressed or compacted, rewound or deleted.  Select exactly one memory.

    Examples:
      memctl context agents.db --user ada --session kyoto
      memctl context agents.db --user ada --session kyoto --all
    """
    counter = token_counter(run, summarizer)
    where = Selection(users=frozenset(user or ()), sessions=frozenset(session or ()))
    with paged(run.output, wanted=pager), readable(run.locate(store), where, path) as location:
        wait_for(_show(run.output, location, where, counter, everything=everything))
        run.output.finish()


async def _show(
    output: Output, location: Location, where: Selection, counter: TokenCounter, *, everything: bool
) -> None:
    async with opened(make_store(location), output) as store:
        info = await find_memory(store, where)
        others = await sharing_users(store, info.key)
        if others:
            output.warn(
                f"the session is shared: its agent also reads the messages of {_names(others)}, "
                "which are not shown"
            )
        shown = Shown(store, info, counter.name, everything)
        view = make_view(output, shown)
        async with aclosing(
            read_context(store, info.key, counter.count, everything=everything)
        ) as found:
            async for part in found:
                shown.add(part)
                view.add(part)
        if failure := store.left_out.failures.get(info.key):
            raise DamagedMemory(store.label, info.key, failure)
        view.end()
        selected = Selection(keys=frozenset({info.key}))
        if (
            COMPRESSED in info.marks
            and not everything
            and (missing := await missing_summaries(store, selected))
        ):
            output.warn(missing.warning(store))
        if shown.faults:
            output.warn(
                f"AgentScope fails to load {count(shown.faults, 'message')}: {shown.first_fault}"
            )


def _names(users: list[str]) -> str:
    shown = ", ".join(repr(user) for user in users[:_NAMED])
    more = len(users) - _NAMED
    return f"{shown} and {count(more, 'user')} more" if more > 0 else shown


class Shown(Struct):
    """The counts of the messages that ``context`` shows, and of their tokens.

    With ``everything``, messages that the framework does not send are shown, too.
    """

    store: Store
    info: MemoryInfo
    counted_by: str
    everything: bool
    messages: int = 0
    of_summary: int = 0
    of_messages: int = 0
    faults: int = 0
    first_fault: str = ""

    def add(self, part: ContextMessage) -> None:
        """Count a message, or the summary, and its tokens."""
        if part.summary:
            self.of_summary = part.tokens
            return
        self.messages += 1
        self.of_messages += part.tokens
        if part.fault:
            self.faults += 1
            self.first_fault = self.first_fault or f"{part.entry.id!r}: {part.fault}"

    @property
    def unread(self) -> dict[str, int]:
        """The numbers of messages that the framework does not send, by reason."""
        found = not_read(self.info)
        if self.everything or not matches_calls(self.store.dialect):
            return found
        alone = self.info.messages - self.messages - sum(found.values())
        return found | ({_UNMATCHED: alone} if alone else {})

    @property
    def left_out(self) -> int:
        """The number of messages that are not shown, as the model does not get them."""
        return 0 if self.everything else sum(self.unread.values())

    def tokens(self) -> dict[str, Any]:
        """Return the tokens of the summary, of the messages and in total, for a JSON report."""
        return {
            "summary": self.of_summary,
            "messages": self.of_messages,
            "total": self.of_summary + self.of_messages,
            "counted_by": self.counted_by,
        }


class View(Protocol):
    """Writes the messages that ``context`` shows, in one of the formats."""

    def add(self, part: ContextMessage) -> None:
        """Write the next message, which ``Shown`` has counted."""

    def end(self) -> None:
        """Write the totals of messages and tokens."""


def make_view(output: Output, shown: Shown) -> View:
    """Return the writer of messages for the format of ``output``."""
    match output.format:
        case Format.TABLE:
            return _Drawn(output, shown)
        case Format.JSON:
            return _Object(output, shown)
        case Format.NDJSON:
            return _Lines()
        case Format.CSV:
            return _Cells(shown)


class _Drawn:
    def __init__(self, output: Output, shown: Shown) -> None:
        self._shown = shown
        self._console = output.console()
        self._piped = not sys.stdout.isatty()  # long lines are not wrapped in a pipe
        self._calls = CallNames()
        self._console.print(conversation.title(shown.info.key), soft_wrap=self._piped)

    def add(self, part: ContextMessage) -> None:
        said = conversation.message(
            part.entry,
            part.number,
            tokens=part.tokens,
            fault=part.fault,
            unread=part.unread,
            dialect=self._shown.store.dialect,
            calls=self._calls,
        )
        self._console.print(said, soft_wrap=self._piped)

    def end(self) -> None:
        shown, tokens = self._shown, self._shown.tokens()
        how = shown.counted_by
        counted = "estimated" if how == "estimate" else f"by {visible(how)}"
        facts = [
            count(shown.messages, "message"),
            f"{count(tokens['total'], 'token')} ({counted})",
        ]
        if shown.of_summary:
            facts.append(f"{shown.of_summary:,} of them the summary")
        if shown.left_out:
            reasons = ", ".join(f"{number:,} {reason}" for reason, number in shown.unread.items())
            facts.append(f"not sent: {reasons}: show them with --all")
        self._console.print()
        self._console.print(Text("; ".join(facts), "bold"), soft_wrap=self._piped)


class _Object:
    def __init__(self, output: Output, shown: Shown) -> None:
        self._shown = shown
        store, key = shown.store, shown.info.key
        head: dict[str, Any] = {
            "store": {"url": store.label, "kind": store.kind},
            "user": key.user,
            "session": key.session,
        }
        if key.part:
            head["path"] = key.part
        head["all"] = shown.everything
        output.listing = self._listing = Listing("context", head, "messages")

    def add(self, part: ContextMessage) -> None:
        self._listing.add(_json(part))

    def end(self) -> None:
        shown = self._shown
        tail = {"tokens": shown.tokens(), "left_out": shown.left_out, "unread": shown.unread}
        self._listing.tail = tail


class _Lines:
    def add(self, part: ContextMessage) -> None:
        sys.stdout.writelines(_json(part))
        sys.stdout.write("\n")

    def end(self) -> None:
        """Do nothing, because the lines have no totals."""


def _json(part: ContextMessage) -> Iterator[str]:
    head = {
        "id": None if part.summary else part.entry.id,
        "summary": part.summary,
        "marks": list(part.entry.marks),
        "tokens": part.tokens,
        "fault": part.fault or None,
        "unread": part.unread or None,
    }
    yield f'{json.dumps(head)[:-1]}, "message": '
    yield from message_json(part.entry.message)
    yield "}"


class _Cells:
    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self._rows = CsvRows()

    def add(self, part: ContextMessage) -> None:
        """Write a row of CSV; long texts of a message above 1 MiB are left out."""
        entry = part.entry
        dialect = self._shown.store.dialect
        view = dialect.outline(entry.message)
        self._rows.add(
            {
                "number": part.number,
                "id": None if part.summary else entry.id,
                "role": view.role,
                "name": view.name,
                "timestamp": view.time,
                "summary": part.summary,
                "marks": list(entry.marks),
                "tokens": part.tokens,
                "fault": part.fault or None,
                "unread": part.unread or None,
                "text": "" if part.fault else transcribe(entry.message, dialect).turn.text,
            }
        )

    def end(self) -> None:
        """Do nothing, because the rows have no totals."""
