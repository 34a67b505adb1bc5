"""The first screen: the names of the memories, by user."""

from __future__ import annotations

import time
from typing import ClassVar

from rich.cells import cell_len

from memctl.browser.catalogue import Catalogue, Counts, User
from memctl.browser.pane import (
    BOLD,
    DIM,
    ERROR,
    PLAIN,
    Hint,
    ListPane,
    Part,
    Signs,
    Subject,
    spread,
)
from memctl.location import visible
from memctl.model import MemoryKey
from memctl.text.numbers import count, size

UNFOLDED = 40
"""The largest number of memories that are all shown at the beginning."""
ROOM_FOR_TIME = 56
"""The columns from which on a row has the time of the last message."""
SHARE = 20
"""While names arrive, rows are made anew after this multiple of the time that making takes."""
ORDERS = ("name", "last message", "messages", "size")


class Names(ListPane):
    """The list of memories: users with their sessions below."""

    share: ClassVar[str] = "38"
    KEYS: ClassVar[dict[str, str]] = {**ListPane.KEYS, "o": "order"}

    def __init__(self, catalogue: Catalogue, signs: Signs, noun: str = "message") -> None:
        super().__init__(signs)
        self.catalogue = catalogue
        self.noun = noun
        self.nothing = "reading…"
        self.filter = ""
        self._order = 0
        self._unfolded: set[str] = set()
        self._offered: set[str] = set()
        """The users that were unfolded without being asked."""
        self._rows: list[User | MemoryKey] = []
        self._matching = (0, 0)
        """The number of users and of memories that the filter lets through."""
        self._made_of = 0
        """The number of memories of which the rows were made."""
        self._rest = 0.0
        """The time until which the rows are not made anew by themselves."""

    # What changes the rows

    def read_anew(self) -> None:
        """Ask for the names and counts anew."""
        self.post_message(self.Outdated())

    def counted(self) -> None:
        """Show the names and counts as they are now; many names, from time to time."""
        if self.catalogue.memories != self._made_of and time.monotonic() >= self._rest:
            self.unfold_few()
        else:
            self.entitle()
            self.redraw()

    def update_rows(self) -> None:
        """Make the rows anew, since names, counts, the order or the filter have changed."""
        began = time.monotonic()
        self._made_of = self.catalogue.memories
        chosen = self._rows[self.cursor] if self.cursor < len(self._rows) else None
        self._rows = list(self._made())
        if chosen is not None:
            self.cursor = self._place(chosen, self.cursor)
        now = time.monotonic()
        self._rest = now + SHARE * (now - began)
        self.entitle()
        self.redraw()

    def unfold_few(self) -> None:
        """Unfold all new users if there are few memories."""
        if self.catalogue.memories <= UNFOLDED:
            new = self.catalogue.users.keys() - self._offered
            self._offered |= new
            self._unfolded |= new
        self.update_rows()

    def filter_by(self, text: str) -> None:
        """Show only the names that contain a text, whatever its case."""
        self.filter = text
        self.update_rows()

    def order(self) -> None:
        """Change the order; until the counts are known, names are the only order."""
        if self.catalogue.counted:
            self._order = (self._order + 1) % len(ORDERS)
            self.update_rows()

    def choose(self, key: MemoryKey) -> None:
        """Move the cursor to a memory."""
        self._unfolded.add(key.user)
        self.update_rows()
        self.go_to(self._place(key, self.cursor))

    def _made(self) -> list[User | MemoryKey]:
        wanted = self.filter.casefold()
        rows: list[User | MemoryKey] = []
        users = memories = 0
        plain = list(self.catalogue.users) == [""]
        for user in self._sorted_users():
            of_user = wanted in user.name.casefold()
            if not plain and (of_user or not wanted):
                users, memories = users + 1, memories + len(user.memories)
                rows.append(user)
                if user.name in self._unfolded:
                    rows += self._sorted_keys(user)
                continue
            keys = self._sorted_keys(user)
            found = [key for key in keys if wanted in f"{key.session} {key.part}".casefold()]
            if found:
                users, memories = users + bool(user.name), memories + len(found)
                rows += found if plain else [user, *found]
        self._matching = users, memories
        return rows

    def _sorted_users(self) -> list[User]:
        users = sorted(self.catalogue.users.values(), key=lambda user: user.name)
        match self._order:
            case 1:
                users.sort(key=lambda user: user.last, reverse=True)
            case 2:
                users.sort(key=lambda user: user.messages, reverse=True)
            case 3:
                users.sort(key=lambda user: user.bytes, reverse=True)
        return users

    def _sorted_keys(self, user: User) -> list[MemoryKey]:
        keys = sorted(user.memories)
        none = Counts(0, 0, None)

        def counts(key: MemoryKey) -> Counts:
            return user.memories[key] or none

        match self._order:
            case 1:
                keys.sort(key=lambda key: counts(key).last or "", reverse=True)
            case 2:
                keys.sort(key=lambda key: counts(key).messages, reverse=True)
            case 3:
                keys.sort(key=lambda key: counts(key).bytes, reverse=True)
        return keys

    def _place(self, row: User | MemoryKey, otherwise: int) -> int:
        name = row.name if isinstance(row, User) else None
        for index, one in enumerate(self._rows):
            if one == row or (isinstance(one, User) and one.name == name):
                return index
        return otherwise

    # Drawing

    def count(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def empty(self) -> str:
        """Return why there are no rows."""
        if self.filter and self.catalogue.memories:
            return f"No name contains '{visible(self.filter)}'. Esc clears."
        return self.nothing

    def row(self, index: int, width: int) -> list[list[Part]]:
        """Return the line of a user or of a memory."""
        one = self._rows[index]
        if isinstance(one, User):
            sign = self.signs.open if self._is_open(index) else self.signs.folded
            left = [(f"{sign} ", DIM), (visible(one.name) or "(no user)", BOLD)]
            numbers = Counts(one.messages, one.bytes, one.last or None)
            known = self.catalogue.counted or one.messages
            right = self._numbers(numbers if known else None, width)
        else:
            indent = "" if list(self.catalogue.users) == [""] else "    "
            left = [(indent, PLAIN), (_session(one), PLAIN)]
            if self.catalogue.is_damaged(one):
                right = [("damaged", ERROR)]
            else:
                right = self._numbers(self.catalogue.counts(one), width)
        return [spread(left, right, width, self.signs.more)]

    def _is_open(self, index: int) -> bool:
        after = index + 1
        return after < len(self._rows) and not isinstance(self._rows[after], User)

    def _numbers(self, counts: Counts | None, width: int) -> list[Part]:
        if counts is None:
            return []
        shown = size(counts.bytes) if self._order == 3 else f"{counts.messages:,}"
        if width < ROOM_FOR_TIME:
            return [(shown, DIM)]
        time = visible((counts.last or "")[:16].replace("T", " "))
        return [(f"{shown:>12}  {time:<16}", DIM)]

    def entitle(self) -> None:
        known = self.catalogue
        users, memories = (
            self._matching if self.filter else (len(known.users.keys() - {""}), known.memories)
        )
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
            if cell_len(_joined(facts)) > self.size.width - 4:
                facts.remove(one)
        self.name_it("Memories", _joined(facts))

    def hints(self) -> list[Hint]:
        """Return the most useful keys."""
        return [("↵", "Open"), ("/", "Filter"), ("o", "Order"), ("s", "Search"), ("1-5", "Screens")]

    # Keys

    def enter(self) -> None:
        """Unfold or fold a user; open a memory."""
        if not self._rows:
            return
        row = self._rows[self.cursor]
        if isinstance(row, MemoryKey):
            self.post_message(self.Opened(row))
            return
        self._unfolded ^= {row.name}
        self.update_rows()

    def leave(self) -> None:
        """Clear the filter; fold the user of the memory; or go back."""
        if self.filter:
            self.filter_by("")
            return
        row = self._rows[self.cursor] if self._rows else None
        name = row.user if isinstance(row, MemoryKey) else row.name if row is not None else None
        if name is not None and name in self._unfolded and "" not in {name, *self.catalogue.users}:
            self._unfolded.discard(name)
            self.update_rows()
            self.go_to(self._place(self.catalogue.users[name], self.cursor))
            return
        self.post_message(self.Left())

    def slash(self) -> None:
        """Filter the names while they are typed."""
        self.post_message(self.Asked("Filter", self._filtered, self.filter))

    def _filtered(self, text: str | None, _complete: bool) -> None:
        self.filter_by(text or "")

    def subject(self) -> Subject:
        """Return the memory or the user under the cursor."""
        row = self._rows[self.cursor] if self._rows else None
        if isinstance(row, MemoryKey):
            return Subject(row)
        return Subject(user=row.name) if row is not None else Subject()

    def copied(self) -> str:
        """Return the name of the session or of the user."""
        found = self.subject()
        return found.key.session if found.key is not None else found.user or ""


def _joined(facts: list[str]) -> str:
    return " · ".join(filter(None, facts))


def _session(key: MemoryKey) -> str:
    name = visible(key.session) or "''"
    return f"{name} ({visible(key.part)})" if key.part else name
