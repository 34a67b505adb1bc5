"""What a model is sent, for people and for programs: written as it comes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from rich.text import Text

from memctl import codec
from memctl.location import visible
from memctl.model import MemoryInfo
from memctl.ops.compress.transcript import said
from memctl.ops.context import Part
from memctl.ops.known_marks import COMPRESSED
from memctl.output import conversation
from memctl.output.formats import CsvRows, Listing, message_json
from memctl.output.numbers import count
from memctl.output.terminal import Format, Output
from memctl.store import Store


@dataclass(slots=True)
class Shown:
    """What was shown so far, and of what: ``everything`` leaves no compressed messages out."""

    store: Store
    info: MemoryInfo
    counted_by: str
    everything: bool
    messages: int = 0
    of_summary: int = 0
    of_messages: int = 0
    faults: int = 0
    first_fault: str = ""

    def add(self, part: Part) -> None:
        """Counts a message."""
        if part.summary:
            self.of_summary = part.tokens
            return
        self.messages += 1
        self.of_messages += part.tokens
        if part.fault:
            self.faults += 1
            self.first_fault = self.first_fault or f"{part.entry.id!r}: {part.fault}"

    @property
    def left_out(self) -> int:
        """Messages of the memory that the model does not get."""
        if self.everything:
            return 0
        return self.info.marks.get(COMPRESSED, 0)

    def tokens(self) -> dict[str, Any]:
        """Of the summary, of the messages, and together."""
        return {
            "summary": self.of_summary,
            "messages": self.of_messages,
            "total": self.of_summary + self.of_messages,
            "counted_by": self.counted_by,
        }


class View(Protocol):
    """A form of a context."""

    def add(self, part: Part) -> None:
        """Writes the next message, which is counted."""

    def end(self) -> None:
        """Writes what is known at the end."""


def make_view(output: Output, shown: Shown) -> View:
    """The form that was asked for."""
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
        self._piped = not sys.stdout.isatty()  # there lines are as long as they are
        self._console.print(conversation.title(shown.info.key), soft_wrap=self._piped)

    def add(self, part: Part) -> None:
        said = conversation.message(
            part.entry, self._shown.messages, tokens=part.tokens, fault=part.fault
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
            left_out = count(shown.left_out, "compressed message")
            facts.append(f"{left_out} left out: --all shows them")
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

    def add(self, part: Part) -> None:
        self._listing.add(_json(part))

    def end(self) -> None:
        self._listing.tail = {"tokens": self._shown.tokens(), "left_out": self._shown.left_out}


class _Lines:
    def add(self, part: Part) -> None:
        sys.stdout.writelines(_json(part))
        sys.stdout.write("\n")

    def end(self) -> None:
        """Every line stands for itself."""


def _json(part: Part) -> Iterator[str]:
    head = {
        "id": None if part.summary else part.entry.id,
        "summary": part.summary,
        "marks": list(part.entry.marks),
        "tokens": part.tokens,
        "fault": part.fault or None,
    }
    yield f'{json.dumps(head)[:-1]}, "message": '
    yield from message_json(part.entry.message)
    yield "}"


class _Cells:
    def __init__(self, shown: Shown) -> None:
        self._shown = shown
        self._rows = CsvRows()

    def add(self, part: Part) -> None:
        """The text is what is counted; of a huge message, without its long texts."""
        entry = part.entry
        fields = codec.outline(entry.message)
        self._rows.add(
            {
                "number": self._shown.messages,
                "id": None if part.summary else entry.id,
                "role": fields.get("role"),
                "name": fields.get("name"),
                "timestamp": fields.get("timestamp"),
                "summary": part.summary,
                "marks": list(entry.marks),
                "tokens": part.tokens,
                "fault": part.fault or None,
                "text": "" if part.fault else said(entry.message).turn.text,
            }
        )

    def end(self) -> None:
        """Every row stands for itself."""
