"""The first screen: the names of the memories, by user."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.binding import BindingType

from memctl.browser.catalogue import Catalogue, Counts, User
from memctl.browser.pane import Folded, Subject, spread
from memctl.browser.source import Source
from memctl.location import visible
from memctl.model import MemoryKey
from memctl.text.numbers import count, minute, size
from memctl.text.words import natural

UNFOLDED = 40
"""The largest number of memories that are all shown at the beginning."""
COUNTED = 20_000
"""The largest number of memories in whose names numbers count: more would take a second."""
ROOM_FOR_TIME = 56
"""The columns from which on a row has the time of the last message."""
SHARE = 20
"""While names arrive, rows are made anew after this multiple of the time that making takes."""
ORDERS = ("name", "last message", "messages", "size")


class Names(Folded[User | MemoryKey]):
    """The list of memories: users with their sessions below."""

    TITLE = "Memories"
    HINTS = (("↵", "Open"), ("/", "Filter"), ("o", "Order"), ("s", "Search"), ("1-5", "Screens"))
    BINDINGS: ClassVar[list[BindingType]] = [("o", "order")]
    share = "38"

    def __init__(self, source: Source, catalogue: Catalogue) -> None:
        super().__init__(source, catalogue)
        self.told = "reading…"
        self.filter = ""
        self._order = 0
        self._offered: set[str] = set()
        """The users that were unfolded without being asked."""
        self._matching = (0, 0)
        """The number of users and of memories that the filter lets through."""
        self._made_of = 0
        """The number of memories of which the rows were made."""
        self._rest = 0.0
        """The time until which the rows are not made anew by themselves."""

    # What changes the rows

    def counted(self) -> None:
        """Show the names and counts as they are now; many names, from time to time."""
        if self.catalogue.memories != self._made_of and time.monotonic() >= self._rest:
            self.unfold_few()
        else:
            self.redraw()

    def update_rows(self) -> None:
        """Make the rows anew, since names, counts, the order or the filter have changed."""
        began = time.monotonic()
        self._made_of = self.catalogue.memories
        super().update_rows()
        now = time.monotonic()
        self._rest = now + SHARE * (now - began)

    def unfold_few(self) -> None:
        """Unfold all new users if there are few memories."""
        if self.catalogue.memories <= UNFOLDED:
            new = self.catalogue.users.keys() - self._offered
            self._offered |= new
            self.unfolded |= new
        self.update_rows()

    def _filter_by(self, text: str | None, _complete: bool = False) -> None:
        """Show only the names that contain a text, whatever its case."""
        self.filter = text or ""
        self.update_rows()

    def action_order(self) -> None:
        """Change the order; until the counts are known, names are the only order."""
        if self.catalogue.counted:
            self._order = (self._order + 1) % len(ORDERS)
            self.update_rows()

    def _is_plain(self) -> bool:
        """Return whether memories have no users."""
        return list(self.catalogue.users) == [""]

    def made(self) -> Iterable[User | MemoryKey]:
        """Yield the rows that the filter lets through."""
        wanted = self.filter.casefold()
        users = memories = 0
        plain = self._is_plain()
        order = natural if self.catalogue.memories <= COUNTED else list
        every = sorted(self.catalogue.users.values(), key=lambda user: order([user.name]))
        for user in sorted(every, key=self._rank, reverse=True):
            sizes = sorted(user.memories.items(), key=lambda one: order(one[0]))
            keys = [
                key for key, _ in sorted(sizes, key=lambda one: self._rank(one[1]), reverse=True)
            ]
            matches = wanted in user.name.casefold() and not plain
            if not matches:
                keys = [key for key in keys if wanted in f"{key.session} {key.part}".casefold()]
            if matches or keys:
                users, memories = users + bool(user.name), memories + len(keys)
                if not plain:
                    yield user
                if not matches or user.name in self.unfolded:
                    yield from keys
        self._matching = users, memories

    def _rank(self, counts: User | Counts | None) -> tuple[str, int]:
        """Return what the order goes by, after the names; the largest comes first."""
        if counts is None or not self._order:
            return "", 0
        if self._order == 1:
            return counts.last or "", 0
        return "", counts.messages if self._order == 2 else counts.bytes

    def group(self, row: User | MemoryKey) -> str:
        """Return the user."""
        return row.name if isinstance(row, User) else row.user

    def is_head(self, row: User | MemoryKey) -> bool:
        """Return whether a row is that of a user."""
        return isinstance(row, User)

    # Drawing

    def empty(self) -> str:
        """Return why there are no rows."""
        if self.filter and self.catalogue.memories:
            return f"No name contains '{visible(self.filter)}'. Esc clears."
        return self.told

    def draw(self, row: User | MemoryKey, width: int) -> list[Text]:
        """Return the line of a user or of a memory."""
        known = self.catalogue
        if isinstance(row, User):
            folds = self.filter.casefold() in row.name.casefold()
            sign = "▸" if folds and row.name not in self.unfolded else "▾"
            left = Text.assemble((f"{sign} ", "dim"), (visible(row.name) or "(no user)", "bold"))
            right = self._numbers(row if known.counted or row.messages else None, width)
        else:
            left = Text(f"{'' if self._is_plain() else '    '}{_session(row)}")
            right = self._numbers(known.counts(row), width)
            if known.is_damaged(row):
                right = Text("damaged", "bold red")
        return [spread(left, right, width)]

    def _numbers(self, counts: User | Counts | None, width: int) -> Text:
        if counts is None:
            return Text()
        shown = size(counts.bytes) if self._order == 3 else f"{counts.messages:,}"
        if width >= ROOM_FOR_TIME:
            time = visible(minute(counts.last))
            shown = f"{shown:>12}  {time:<16}"
        return Text(shown, "dim")

    def facts(self) -> Iterable[str]:
        """Return the numbers, the order and the filter, as far as there is room for them."""
        known = self.catalogue
        users, memories = len(known.users.keys() - {""}), known.memories
        if self.filter:
            users, memories = self._matching
        of_users = count(users, "user") if users else ""
        order = state = ""
        if not known.listed:
            state = "reading…"
        elif known.renewed or not known.counted:
            state = "counting…"
        else:
            state = f"{len(known.damaged):,} damaged" if known.damaged else ""
            order = f"by {ORDERS[self._order]}"
        chosen = f"filter '{self.filter}'" if self.filter else ""
        facts = [of_users, count(memories, "memory"), state, order, chosen]
        for one in (of_users, order if chosen else ""):  # the first to go if there is little room
            if cell_len(" · ".join(filter(None, facts))) > self.size.width - 4:
                facts.remove(one)
        return facts

    # Keys

    def open(self, row: User | MemoryKey) -> None:
        """Open a memory."""
        assert isinstance(row, MemoryKey)
        self.post_message(self.Opened(row))

    def fold(self) -> bool:
        """Clear the filter, or fold the user of the memory."""
        if self.filter:
            self._filter_by("")
            return True
        return not self._is_plain() and super().fold()

    def action_slash(self) -> None:
        """Filter the names while they are typed."""
        self.post_message(self.Asked("Filter", self._filter_by, self.filter))

    def about(self, row: User | MemoryKey) -> Subject:
        """Return a memory or a user, to copy the name of the session or of the user."""
        if isinstance(row, MemoryKey):
            return Subject(row, copied=row.session)
        return Subject(user=row.name, copied=row.name)


def _session(key: MemoryKey) -> str:
    name = visible(key.session) or "''"
    return f"{name} ({visible(key.part)})" if key.part else name
