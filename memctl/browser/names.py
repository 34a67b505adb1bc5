"""The first screen: the names of the memories, by user."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.binding import BindingType

from memctl.browser.actions import HINTS
from memctl.browser.catalogue import Catalogue, Counts, User
from memctl.browser.pane import Folded, Hint, Subject, spread
from memctl.browser.source import Source
from memctl.location import visible
from memctl.model import MemoryKey
from memctl.selection import Selection
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
    BINDINGS: ClassVar[list[BindingType]] = [
        *[("o", "order"), ("a,*", "pick_all"), ("/", "app.filter")]
    ]
    share = "38"

    def __init__(self, source: Source, catalogue: Catalogue) -> None:
        super().__init__(source, catalogue)
        self.told = "reading…"
        self.filter = ""
        self.picked: set[MemoryKey] = set()
        """The memories that actions are about; if empty, the row under the cursor."""
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

    def filter_by(self, text: str) -> None:
        """Show only the names that contain a text, whatever its case."""
        self.filter = text
        self.update_rows()

    def action_order(self) -> None:
        """Change the order; until the counts are known, names are the only order."""
        if self.catalogue.counted:
            self._order = (self._order + 1) % len(ORDERS)
            self.update_rows()

    def _is_plain(self) -> bool:
        """Return whether memories have no users."""
        return self.catalogue.users.keys() == {""}

    def made(self) -> Iterable[User | MemoryKey]:
        """Yield the rows that the filter lets through."""
        users = memories = 0
        plain = self._is_plain()
        order = natural if self.catalogue.memories <= COUNTED else list
        every = sorted(self.catalogue.users.values(), key=lambda user: order([user.name]))
        for user in sorted(every, key=self._rank, reverse=True):
            keys = sorted(self._matching_keys(user), key=order)
            keys.sort(key=lambda key: self._rank(user.memories[key]), reverse=True)
            matches = self._matches(user)
            if matches or keys:
                users, memories = users + bool(user.name), memories + len(keys)
                if not plain:
                    yield user
                if not matches or user.name in self.unfolded:
                    yield from keys
        self._matching = users, memories

    def _matches(self, user: User) -> bool:
        """Return whether the filter lets all memories of a user through."""
        return self.filter.casefold() in user.name.casefold() and not self._is_plain()

    def _matching_keys(self, user: User) -> Iterable[MemoryKey]:
        """Return the memories of a user that the filter lets through."""
        if self._matches(user):
            return user.memories
        wanted = self.filter.casefold()
        return [key for key in user.memories if wanted in f"{key.session} {key.part}".casefold()]

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
        return "No message matches the filter." if self.source.filter else self.told

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
            if row in self.picked:
                left = Text.assemble(("● ", "yellow"), left.plain[0 if self._is_plain() else 2 :])
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
        picked = f"{len(self.picked):,} selected" if self.picked else ""
        facts = [picked, of_users, count(memories, "memory"), state, order, chosen]
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
        """Clear the filter of names, or fold the user of the memory; leave another filter alone."""
        if self.filter:
            self.filter_by("")
            return True
        return not (self.source.filter or self._is_plain()) and super().fold()

    def hints(self) -> Sequence[Hint]:
        """Return the most useful keys."""
        if self.source.writing is None:
            return self.HINTS
        return (("↵", "Open"), ("Space", "Select"), *HINTS, ("/", "Filter"), ("1-5", "Screens"))

    # What actions are about

    def _shown(self, user: str | None = None) -> set[MemoryKey]:
        """Return the memories that the filter lets through, of one user or of all."""
        users = self.catalogue.users.values()
        some = [one for one in users if user is None or one.name == user]
        return {key for one in some for key in self._matching_keys(one)}

    def action_pick(self) -> None:
        """Pick the memory under the cursor, or all of the user, or let them go again."""
        row = self.chosen
        if self.source.writing is None or row is None:
            super().action_pick()
            return
        some = {row} if isinstance(row, MemoryKey) else self._shown(row.name)
        self.picked = self.picked - some if some <= self.picked else self.picked | some
        self.go_to(self.cursor + 1)

    def action_pick_all(self) -> None:
        """Pick all memories that the filter lets through, or let all go again."""
        if self.source.writing is not None:
            self.picked = set() if self.picked else self._shown()
            self.redraw()

    def selected(self) -> Selection | None:
        """Return the picked memories, or those of the row under the cursor."""
        row, keys = self.chosen, self.picked & self._shown()
        if not self.picked and row is not None:
            keys = {row} if isinstance(row, MemoryKey) else self._shown(row.name)
        return self.source.shown.only(frozenset(keys)) if keys else None

    def about(self, row: User | MemoryKey) -> Subject:
        """Return a memory or a user, to copy the name of the session or of the user."""
        if isinstance(row, MemoryKey):
            return Subject(row, copied=row.session)
        return Subject(user=row.name, copied=row.name)


def _session(key: MemoryKey) -> str:
    name = visible(key.session) or "''"
    return f"{name} ({visible(key.part)})" if key.part else name
