"""The third screen: the marks of messages, and the memories that have them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rich.text import Text

from memctl.browser.commands import option, word
from memctl.browser.pane import Folded, Subject, Target, name_of, spread
from memctl.location import visible
from memctl.model import MemoryKey
from memctl.text.numbers import count


class _Row(NamedTuple):
    """A mark with its messages and memories; with ``key``, one of these memories."""

    mark: str
    messages: int
    memories: int = 0
    key: MemoryKey | None = None


class Marks(Folded[_Row]):
    """The list of marks, with their memories below."""

    TITLE = "Marks"
    HINTS = (("↵", "Open"), ("x", "Commands"), ("1-5", "Screens"), ("Esc", "Back"))
    share = "46"

    # What changes the rows

    def entered(self) -> None:
        """Make the rows, since those of a list that is not seen are not kept up to date."""
        self.update_rows()

    def counted(self) -> None:
        """Show the counts when they are complete."""
        if self.display and self.catalogue.counted:
            self.update_rows()

    def made(self) -> Iterable[_Row]:
        """Yield the marks, the most frequent first."""
        found: dict[str, list[tuple[int, MemoryKey]]] = {}
        for user in self.catalogue.users.values():
            for key, counts in user.memories.items():
                for mark, number in counts.marks if counts is not None else ():
                    found.setdefault(mark, []).append((number, key))
        marks = [_Row(mark, sum(n for n, _ in some), len(some)) for mark, some in found.items()]
        for row in sorted(marks, key=lambda row: (-row.messages, row.mark)):
            yield row
            if row.mark in self.unfolded:
                for number, key in sorted(found[row.mark], key=lambda one: (-one[0], one[1])):
                    yield _Row(row.mark, number, 0, key)

    def group(self, row: _Row) -> str:
        """Return the mark."""
        return row.mark

    def is_head(self, row: _Row) -> bool:
        """Return whether a row is that of a mark."""
        return row.key is None

    # Drawing

    def empty(self) -> str:
        """Return why there are no rows."""
        if not self.catalogue.counted:
            return "counting…"
        return "facts have no marks" if self.catalogue.facts else "no message has a mark"

    def draw(self, row: _Row, width: int) -> list[Text]:
        """Return the line of a mark or of a memory."""
        if row.key is None:
            sign = "▾" if row.mark in self.unfolded else "▸"
            left = Text.assemble((f"{sign} ", "dim"), (visible(row.mark), "bold"))
            memories = f" in {count(row.memories, 'memory')}"
        else:
            left, memories = Text(f"    {name_of(row.key)}"), ""
        return [spread(left, Text(f"{row.messages:,}{memories}", "dim"), width)]

    def facts(self) -> Iterable[str]:
        """Return the number of marks."""
        marks = sum(map(self.is_head, self.rows))
        yield count(marks, "mark") if marks else ""
        yield "" if self.catalogue.counted else "counting…"

    # Keys

    def open(self, row: _Row) -> None:
        """Open a memory at its first message with the mark."""
        assert row.key is not None
        self.post_message(self.Opened(row.key, Target(lambda one: row.mark in one.marks)))

    def about(self, row: _Row) -> Subject:
        """Return a memory, and commands for its mark."""
        name, mark = word(self.source.argument), option("--mark", row.mark)
        if row.key is not None:
            mark += option("--user", row.key.user) + option("--session", row.key.session)
        commands = (
            f"memctl inspect {name}{mark} --messages",
            f"memctl mark remove {name} {word(row.mark)}{mark} --dry-run",
            f"memctl delete {name}{mark} --dry-run",
        )
        copied = row.mark if row.key is None else row.key.session
        return Subject(row.key, commands=commands, copied=copied)
