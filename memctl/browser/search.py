"""The second screen: the hits of a search, from the index that ``memctl search`` keeps."""

from __future__ import annotations

from typing import ClassVar

from memctl.browser.catalogue import Catalogue
from memctl.browser.pane import (
    DIM,
    PLAIN,
    Hint,
    ListPane,
    Part,
    Signs,
    Subject,
    Target,
    drawn,
    spread,
    with_id,
)
from memctl.browser.source import Background, Source
from memctl.errors import MemctlError
from memctl.ops.index import Target as IndexTarget
from memctl.ops.index import has_index
from memctl.ops.search import SearchOptions, SearchReport, search
from memctl.output import found
from memctl.text.numbers import count
from memctl.wrappers.timeout import limited

TOP = 200
"""The maximum number of hits."""
RATE = 20_000
"""The messages that are indexed in a second, about."""
SNIPPET = 2
"""The lines of a snippet."""
LANGUAGE = (
    "Press / and type what to look for.\n\n"
    "knee surgery     any of these words; messages\n"
    "                 with more of them come first\n"
    '"knee surgery"   the words one after the other\n'
    "medic*           words with this beginning\n"
    "knee -work       not with the word after the minus\n"
    "user:ada role:user mark:hint session:s1 name:Friday\n"
    "                 only such messages"
)


class Search(ListPane):
    """The list of hits; Enter opens one in its conversation."""

    share: ClassVar[str] = "52"
    height: ClassVar[int] = 1 + SNIPPET

    def __init__(self, source: Source, catalogue: Catalogue, signs: Signs) -> None:
        super().__init__(signs)
        self._source = source
        self._catalogue = catalogue
        self._query = ""
        self._report = SearchReport()
        self._told = LANGUAGE
        self._asks = False
        """True while it asks whether to read all messages."""
        self._may_read = False
        """True if all messages may be read to search."""
        self._background: Background | None = None

    # Searching

    def slash(self) -> None:
        """Ask for a query."""
        self.post_message(self.Asked("Search", self._typed, self._query))

    def _typed(self, text: str | None, complete: bool) -> None:
        if complete and text and text.strip():
            self._query = text
            self._show(SearchReport(), "")
            self.read_anew()

    def read_anew(self) -> None:
        """Search again; the index takes in what is new."""
        if self._query:
            self._asks = False
            self._say("searching…")
            self.run_worker(self._search(), group="search", exclusive=True)

    async def _search(self) -> None:
        source = self._source
        background = self._background = Background()
        target = IndexTarget(
            source.location, lambda: limited(source.make(), source.notices.timeout)
        )
        options = SearchOptions(top=TOP, keep=not source.piped)
        progress = background.progress(self._tell_progress)
        try:
            if not self._may_read:
                there = not source.piped and await background.submit(has_index(target))
                self._may_read, self._asks = there, not there
                if self._asks:
                    self._say("")
                    return
            report = await background.submit(
                search([target], self._query, source.where, options, progress)
            )
        except MemctlError as error:
            self._say("\n\n".join(filter(None, (error.message, error.hint))))
            self.post_message(self.Told(error.message, error=True))
            return
        finally:
            if self._background is background:
                self._background = None
                self.entitle()
                self.post_message(self.HintsChanged())
            await background.close()
        self._show(report, f"No {report.noun} answers the query.")
        for warning in report.warnings:
            source.notices.warn(warning)

    def _tell_progress(self, messages: int) -> None:
        if self._background is not None:
            total = self._catalogue.messages if self._catalogue.counted else 0
            of = f" of {total:,}" if total >= messages and not self._source.where.named else ""
            self._say(f"reading… {messages:,}{of}; Esc stops")

    def _show(self, report: SearchReport, told: str) -> None:
        self._report = report
        self.cursor = 0
        self._say(told)

    def _say(self, told: str) -> None:
        """Show a text: in place of hits, or in the border below them while a search is going on."""
        self._told = told
        self.entitle()
        self.redraw()
        self.post_message(self.HintsChanged())

    async def end(self) -> None:
        """Stop the search, since the browser ends."""
        if self._background is not None:
            await self._background.close()

    # Drawing

    def count(self) -> int:
        """Return the number of hits."""
        return len(self._report.hits)

    def empty(self) -> str:
        """Return what to do, or why there are no hits."""
        return self._question() if self._asks else self._told

    def _question(self) -> str:
        source, known = self._source, self._catalogue
        about = ""
        if known.counted and not source.where.named:
            seconds = max(round(known.messages / RATE), 1)
            about = f" (about {seconds:,} s for {known.messages:,})"
        if source.piped:
            return (
                f"Each search reads all messages{about}, since no index is kept of a pipe.\n\n"
                "Enter searches, Esc goes back."
            )
        return (
            "There is no index of this store yet.\n\n"
            f"Reads all messages once{about} and keeps an index in the cache folder.\n\n"
            "Enter begins, Esc goes back."
        )

    def row(self, index: int, width: int) -> list[list[Part]]:
        """Return the memory, the sender and the time of a hit, and its text below."""
        hit = self._report.hits[index]
        head = drawn(found.heading(hit), 10 * width)[0]
        lines = [[("  ", PLAIN), *parts] for parts in drawn(found.snippet(hit), width - 2)]
        if len(lines) > SNIPPET:
            lines[SNIPPET - 1] = spread(lines[SNIPPET - 1], [(self.signs.more, DIM)], width, "")
        lines += [[]] * SNIPPET
        return [spread(head, [], width, self.signs.more), *lines[:SNIPPET]]

    def entitle(self) -> None:
        facts = []
        if self._report.hits and self._background is not None:
            facts.append(self._told)
        elif self._report.hits:
            searched = count(self._report.index.messages, self._report.noun)
            facts.append(f"{found.number_of_hits(self._report)} in {searched}")
        title = f"Search: {self._query}" if self._query else "Search"
        self.name_it(title, " · ".join(facts))

    def hints(self) -> list[Hint]:
        """Return the most useful keys."""
        if self._background is not None:
            return [("1-5", "Screens"), ("Esc", "Stop")]
        if self._asks:
            return [("↵", "Begin"), ("/", "Search"), ("Esc", "Back")]
        if not self._report.hits:
            return [("/", "Search"), ("1-5", "Screens"), ("Esc", "Back")]
        return [("↵", "Open"), ("/", "Search"), ("x", "Commands"), ("Esc", "Back")]

    # Keys

    def enter(self) -> None:
        """Open a hit; begin to read, or ask for a query."""
        if self._asks:
            self._asks, self._may_read = False, True
            self.read_anew()
        elif self._report.hits:
            hit = self._report.hits[self.cursor]
            text = ""
            if hit.spans:
                start, end = hit.spans[0]
                text = hit.snippet[start:end]
            at = None if hit.position is None else hit.position - 1
            self.post_message(self.Opened(hit.key, Target(with_id(hit.id), at, text)))
        elif self._background is None:
            self.slash()

    def leave(self) -> None:
        """Stop the search, or go back."""
        if self._background is not None:
            self.workers.cancel_group(self, "search")
            self._say("stopped; r searches again")
            return
        if self._asks:
            self._asks = False
            self._say(LANGUAGE)
        self.post_message(self.Left())

    def subject(self) -> Subject:
        """Return the memory and the message of the hit under the cursor."""
        if not self._report.hits:
            return Subject()
        hit = self._report.hits[self.cursor]
        return Subject(hit.key, hit.id)

    def copied(self) -> str:
        """Return the id of the message under the cursor."""
        return self.subject().id or ""
