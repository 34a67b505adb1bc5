"""The third screen: the marks of messages, and the memories that have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from memctl.browser.catalogue import Catalogue
from memctl.browser.commands import option, word
from memctl.browser.pane import (
    BOLD,
    DIM,
    PLAIN,
    Hint,
    ListPane,
    Part,
    Signs,
    Subject,
    Target,
    name_of,
    spread,
)
from memctl.browser.source import Source
from memctl.location import visible
from memctl.model import MemoryKey, StoredMessage
from memctl.text.numbers import count


class _Row(NamedTuple):
    """A mark with its messages and memories; with ``key``, one of these memories."""

    mark: str
    messages: int
    memories: int = 0
    key: MemoryKey | None = None


class Marks(ListPane):
    """The list of marks, with their memories below."""

    share: ClassVar[str] = "46"

    def __init__(self, source: Source, catalogue: Catalogue, signs: Signs) -> None:
        super().__init__(signs)
        self._source = source
        self._catalogue = catalogue
        self._unfolded: set[str] = set()
        self._rows: list[_Row] = []

    # What changes the rows

    def entered(self) -> None:
        """Make the rows, since those of a list that is not seen are not kept up to date."""
        self._update_rows()

    def counted(self) -> None:
        """Show the counts when they are complete."""
        if self.display and self._catalogue.counted:
            self._update_rows()

    def read_anew(self) -> None:
        """Ask for the counts anew."""
        self.post_message(self.Outdated())

    def _update_rows(self) -> None:
        chosen = self._rows[self.cursor] if self.cursor < len(self._rows) else None
        self._rows = list(self._made())
        if chosen is not None:
            self.cursor = self._place(chosen)
        self.entitle()
        self.redraw()

    def _made(self) -> Iterator[_Row]:
        found: dict[str, list[tuple[int, MemoryKey]]] = {}
        for user in self._catalogue.users.values():
            for key, counts in user.memories.items():
                for mark, number in counts.marks if counts is not None else ():
                    found.setdefault(mark, []).append((number, key))
        marks = [_Row(mark, sum(n for n, _ in some), len(some)) for mark, some in found.items()]
        for row in sorted(marks, key=lambda row: (-row.messages, row.mark)):
            yield row
            if row.mark in self._unfolded:
                for number, key in sorted(found[row.mark], key=lambda one: (-one[0], one[1])):
                    yield _Row(row.mark, number, 0, key)

    def _place(self, row: _Row) -> int:
        for index, one in enumerate(self._rows):
            if (one.mark, one.key) == (row.mark, row.key):
                return index
        return self.cursor

    # Drawing

    def count(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def empty(self) -> str:
        """Return why there are no rows."""
        if not self._catalogue.counted:
            return "counting…"
        return "facts have no marks" if self._catalogue.facts else "no message has a mark"

    def row(self, index: int, width: int) -> list[list[Part]]:
        """Return the line of a mark or of a memory."""
        one = self._rows[index]
        left: list[Part]
        if one.key is None:
            sign = self.signs.open if one.mark in self._unfolded else self.signs.folded
            left = [(f"{sign} ", DIM), (visible(one.mark), BOLD)]
            memories = f" in {count(one.memories, 'memory')}"
        else:
            left, memories = [(f"    {name_of(one.key)}", PLAIN)], ""
        return [spread(left, [(f"{one.messages:,}{memories}", DIM)], width, self.signs.more)]

    def entitle(self) -> None:
        marks = sum(row.key is None for row in self._rows)
        facts = [count(marks, "mark")] if marks else []
        facts += [] if self._catalogue.counted else ["counting…"]
        self.name_it("Marks", " · ".join(facts))

    def hints(self) -> list[Hint]:
        """Return the most useful keys."""
        return [("↵", "Open"), ("x", "Commands"), ("1-5", "Screens"), ("Esc", "Back")]

    # Keys

    def enter(self) -> None:
        """Unfold or fold a mark; open a memory at its first message with the mark."""
        if not self._rows:
            return
        row = self._rows[self.cursor]
        if row.key is not None:
            self.post_message(self.Opened(row.key, Target(lambda one: _has(one, row.mark))))
            return
        self._unfolded ^= {row.mark}
        self._update_rows()

    def leave(self) -> None:
        """Fold the mark of the memory, or go back."""
        row = self._rows[self.cursor] if self._rows else None
        if row is None or row.mark not in self._unfolded:
            self.post_message(self.Left())
            return
        self._unfolded.discard(row.mark)
        self._update_rows()
        self.go_to(self._place(row._replace(key=None)))

    def subject(self) -> Subject:
        """Return the memory under the cursor, and commands for its mark."""
        if not self._rows:
            return Subject()
        row = self._rows[self.cursor]
        name, mark = word(self._source.argument), option("--mark", row.mark)
        if row.key is not None:
            mark += option("--user", row.key.user) + option("--session", row.key.session)
        return Subject(
            row.key,
            commands=(
                f"memctl inspect {name}{mark} --messages",
                f"memctl mark remove {name} {word(row.mark)}{mark} --dry-run",
                f"memctl delete {name}{mark} --dry-run",
            ),
        )

    def copied(self) -> str:
        """Return the mark, or the name of the session."""
        if not self._rows:
            return ""
        row = self._rows[self.cursor]
        return row.mark if row.key is None else row.key.session


def _has(message: StoredMessage, mark: str) -> bool:
    return mark in message.marks
