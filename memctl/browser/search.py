"""The second screen: the hits of a search, from the index that ``memctl search`` keeps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from rich.text import Text

from memctl.browser.catalogue import Catalogue
from memctl.browser.pane import Hint, ListPane, Subject, Target, drawn, spread, with_id
from memctl.browser.source import Background, Source
from memctl.ops.index import Target as IndexTarget
from memctl.ops.index import has_index
from memctl.ops.search import Hit, SearchOptions, SearchReport, search
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
    "Type what to look for.\n\n"
    "knee surgery     any of these words; messages\n"
    "                 with more of them come first\n"
    '"knee surgery"   the words one after the other\n'
    "medic*           words with this beginning\n"
    "knee -work       not with the word after the minus\n"
    "user:ada role:user mark:hint session:s1 name:Friday\n"
    "                 only such messages"
)


class Search(ListPane[Hit]):
    """The list of hits; Enter opens one in its conversation."""

    TITLE = "Search"
    HINTS = (("↵", "Open"), ("/", "Search"), ("x", "Commands"), ("Esc", "Back"))
    AGAIN = "r searches again"
    share = "52"
    height = 1 + SNIPPET

    def __init__(self, source: Source, catalogue: Catalogue) -> None:
        super().__init__(source, catalogue)
        self.told = LANGUAGE
        self.words = ""
        self._report = SearchReport()
        self._asks = False
        """True while it asks whether to read all messages."""
        self._may_read = False
        """True if all messages may be read to search."""

    # Searching

    def entered(self) -> None:
        """Ask for a query if there is none."""
        super().entered()
        if not self.words:
            self.action_slash()

    def action_slash(self) -> None:
        """Ask for a query."""
        self.post_message(self.Asked("Search", self._typed, self.words))

    def _typed(self, text: str | None, complete: bool) -> None:
        if complete and text and text.strip():
            self.words = text
            self._show(SearchReport(), "")
            self.read_anew()

    def read_anew(self) -> None:
        """Search again; the index takes in what is new."""
        if self.words:
            self._asks = False
            self.say("searching…")
            self.run_worker(self._search(), group="search", exclusive=True)

    async def _search(self) -> None:
        background = Background()
        report = await self.wait_for(background, self._report_of(background))
        if report is not None:
            self._show(report, f"No {report.noun} answers the query.")
            for warning in report.warnings:
                self.source.notices.warn(warning)

    async def _report_of(self, background: Background) -> SearchReport | None:
        """Return the hits; None if it has to ask whether to read all messages."""
        source = self.source
        target = IndexTarget(
            source.location, lambda: limited(source.make(), source.notices.timeout)
        )
        options = SearchOptions(top=TOP, keep=not source.piped)
        progress = background.progress(
            partial(self.tell_progress, "reading…", not source.where.named)
        )
        if not self._may_read:
            there = not source.piped and await background.submit(has_index(target))
            self._may_read, self._asks = there, not there
            if self._asks:
                self.say("")
                return None
        return await background.submit(
            search([target], self.words, source.shown, options, progress)
        )

    def _show(self, report: SearchReport, told: str) -> None:
        self._report, self.rows = report, report.hits
        self.cursor = 0
        self.say(told)

    # Drawing

    def empty(self) -> str:
        """Return what to do, or why there are no hits."""
        return self._question() if self._asks else self.told

    def _question(self) -> str:
        source, known = self.source, self.catalogue
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

    def draw(self, row: Hit, width: int) -> list[Text]:
        """Return the memory, the sender and the time of a hit, and its text below."""
        lines = [Text.assemble("  ", text) for text in drawn(found.snippet(row), width - 2)]
        if len(lines) > SNIPPET:
            lines[SNIPPET - 1] = spread(lines[SNIPPET - 1], Text("…", "dim"), width)
        lines += [Text()] * (SNIPPET - len(lines))
        return [spread(found.heading(row), Text(), width), *lines[:SNIPPET]]

    def title(self) -> str:
        """Return the query."""
        return f"Search: {self.words}" if self.words else "Search"

    def facts(self) -> Iterable[str]:
        """Return the number of hits, or how far a search is."""
        if self.rows and self.work is not None:
            yield self.told
        elif self.rows:
            searched = count(self._report.index.messages, self._report.noun)
            yield f"{found.number_of_hits(self._report)} in {searched}"

    def hints(self) -> Sequence[Hint]:
        """Return the most useful keys."""
        if self.work is None and self._asks:
            return (("↵", "Begin"), ("/", "Search"), ("Esc", "Back"))
        if self.work is None and not self.rows:
            return (("/", "Search"), ("1-5", "Screens"), ("Esc", "Back"))
        return super().hints()

    # Keys

    def action_enter(self) -> None:
        """Open a hit; begin to read, or ask for a query."""
        if self._asks:
            self._asks, self._may_read = False, True
            self.read_anew()
        elif not self.rows and self.work is None:
            self.action_slash()
        else:
            super().action_enter()

    def open(self, row: Hit) -> None:
        """Open a hit."""
        start, end = row.spans[0] if row.spans else (0, 0)
        at = None if row.position is None else row.position - 1
        self.post_message(self.Opened(row.key, Target(with_id(row.id), at, row.snippet[start:end])))

    def action_leave(self) -> None:
        """Stop the search, or go back."""
        if self._asks:
            self._asks = False
            self.say(LANGUAGE)
        super().action_leave()

    def about(self, row: Hit) -> Subject:
        """Return the memory and the message of a hit."""
        return Subject(row.key, row.id, copied=row.id)
