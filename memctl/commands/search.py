"""``memctl search``: finds messages by words or by meaning."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import UNSET

from memctl import api
from memctl.commands._context import Run
from memctl.commands._options import EmbedderOption, PagerOption, PathOption, opens_stores
from memctl.commands._parameters import argument, option
from memctl.commands._run import named_embedder, readable, wait_for
from memctl.errors import UsageError
from memctl.index.query import field_of
from memctl.layouts.agents import FLEET
from memctl.location import Location, visible
from memctl.ops.names import refuse_absent
from memctl.ops.search import By, Hit, SearchReport
from memctl.output.pager import paged
from memctl.output.printout import Printout
from memctl.output.terminal import Format, Output
from memctl.registry import SUFFIXES
from memctl.reports import search as reports
from memctl.reports.report import named
from memctl.selection import Selection
from memctl.text.numbers import count

if TYPE_CHECKING:
    from memctl.embedder import Embedder


_AGENTS = f"@{FLEET}"


@opens_stores
def search(
    run: Run,
    words: Annotated[
        list[str], argument("STORE... QUERY", "Stores, and what to look for in them.")
    ],
    where: Selection,
    by: Annotated[
        By, option("--by WAY", "Rank by words, by meaning, by both, or by the store's service")
    ] = By.WORDS,
    top: Annotated[int, option("--top --limit N", "Show the best N messages.", min=1)] = 10,
    around: Annotated[
        int, option("--around N", "Show N messages before and after each.", min=0)
    ] = 0,
    ids: Annotated[bool, option("--ids", "Print only the ids, one a line, best first.")] = False,
    index: Annotated[
        bool, option("--index/--no-index", "Read all messages, and keep no index.")
    ] = True,
    embedder: EmbedderOption = None,
    path: PathOption = None,
    pager: PagerOption = True,
) -> None:
    """Find messages by words or by meaning, best first.

    The query begins at the first word that names no store. It has words, "phrases", prefixes
    (medic*), words that must not be there (-work), and filters (user:ada role:user). The first
    search of a store makes an index in the cache folder; later searches read only new messages.

    Examples:
      memctl search agents.db knee surgery --user ada
      memctl search agents.db archive.ndjson '"kyoto trip" -train' --around 2
      memctl search agents.db "where does she live" --by both --embedder local
    """
    output = run.output
    stores, query = _split(run, words)
    if ids and output.format is not Format.TABLE:
        raise UsageError(f"--ids and --format {output.format} cannot be combined", "choose one")
    model = _embedder(run, by, embedder)
    places = [_located(run, one) for store in stores for one in _members(run, store)]
    with ExitStack() as stack:
        keep = index and all(place.kind != "stdio" for place in places)
        locations = [stack.enter_context(readable(one, where, path)) for one in places]

        async def searched() -> SearchReport:
            async with model or nullcontext():
                return await api.search(
                    *(locations, query, where),
                    by=by,
                    top=top,
                    around=around,
                    embedder=model,
                    keep=keep,
                    observer=output,
                )

        report = wait_for(searched())
    with paged(output, wanted=pager and not ids):  # without the progress
        for text in report.warnings:
            output.warn(text)
        if not report.hits and report.memories is not None:
            refuse_absent(where, report.memories, *locations, names=report.names)
        for word, near in report.similar.items():
            output.note(f"no {report.noun} has the word {word!r}: did you mean {near!r}?")
        _note_costs(output, report)
        if ids:
            _print_ids(output, report)
            return
        output.printout = _printout(query, by, locations, report)
        output.finish()


def _split(run: Run, words: list[str]) -> tuple[list[str], str]:
    """Return the stores and the query of a command line.

    The query begins at the first word after a store that names no store, and that does not look
    like a path or a URL.  The last word belongs to the query, whatever it looks like.

    Raises:
        UsageError: there is no store, or no query.
    """
    stores, query = words[:1], words[1:]
    while len(query) > 1 and _names_store(run, query[0]):
        stores.append(query.pop(0))
    if not query:
        raise UsageError("a search needs a store and a query", "memctl search STORE WORDS...")
    return stores, " ".join(query)


def _members(run: Run, store: str) -> tuple[str, ...]:
    """Return the names of the stores of coding agents for ``@agents``; else the name itself."""
    return run.members(store) if store == _AGENTS else (store,)


def _located(run: Run, store: str) -> Location:
    """Return the location of a store.

    Raises:
        UsageError: there is no such store, perhaps because ``store`` is a word of the query.
    """
    try:
        return run.locate(store)
    except UsageError as error:
        raise UsageError(
            error.message, f"{error.hint}; the stores come before the query"
        ) from error


def _names_store(run: Run, word: str) -> bool:
    """Return whether a word is an alias or ``@agents``, or looks like a path or URL of a store."""
    if run.configuration().alias(word) is not None or os.path.lexists(word):
        return True
    if word == _AGENTS:
        return True
    if field_of(word):
        return False
    return "/" in word or ":" in word or word.lower().endswith(SUFFIXES)


def _embedder(run: Run, by: By, name: str | None) -> Embedder | None:
    """Return the embedder of a search by meaning; None for any other search.

    Without ``name``, return the only configured embedder.

    Raises:
        UsageError: ``name`` is given for another search; or no name is given, and not exactly one
            embedder is configured.
    """
    if by not in (By.MEANING, By.BOTH):
        if name is not None:
            raise UsageError(
                f"--embedder is not used by a search by {by}", "add --by meaning or --by both"
            )
        return None
    if name is None:
        known = list(run.configuration().embedders)
        if len(known) != 1:
            hint = f"name one with --embedder: {', '.join(known)}" if known else None
            raise UsageError(
                f"a search by {by} needs an embedder",
                hint or "[embedders.NAME] in the configuration is one; see memctl help config",
            )
        name = known[0]
    return named_embedder(run, name)


def _note_costs(output: Output, report: SearchReport) -> None:
    """With ``--verbose``, print the number and cost of new vectors."""
    made = report.embedding
    if made.texts:
        cost = "" if made.cost is None else f", cost {made.cost:.4f}"
        tokens = made.usage.tokens_in
        output.detail(
            f"made {count(made.texts, 'vector')} of {count(tokens, 'token')}{cost}", "embedded"
        )


def _print_ids(output: Output, report: SearchReport) -> None:
    """Print the ids of the hits that have words of the query."""
    hits = [hit for hit in report.hits if hit.has_words]
    if left := len(report.hits) - len(hits):
        output.warn(
            f"left out {count(left, 'hit')} with none of the words of the query;"
            " --json has their ids"
        )
    for id in dict.fromkeys(hit.id for hit in hits):
        sys.stdout.write(f"{visible(id)}\n")
    if report.found is not None and report.found > len(report.hits):
        from memctl.output.found import number_of_hits  # only needed here

        output.note(f"{number_of_hits(report)}: --top N takes more than {len(report.hits)}")


def _printout(query: str, by: By, stores: list[Location], found: SearchReport) -> Printout:
    def report() -> reports.SearchReport:
        use, counted = found.index, found.found is not None
        return reports.SearchReport(
            query=query,
            by=by.value,
            stores=[store.label for store in stores],
            hits=[_row(hit) for hit in found.hits],
            found=UNSET if found.found is None else found.found,
            complete=found.complete if counted else UNSET,
            index=reports.IndexUseRow(use.messages, use.new, round(use.seconds, 3)),
        )

    def table() -> Any:
        from memctl.output import found as drawn  # only needed here

        return drawn.hits(found, several=len(stores) > 1)

    return Printout(report, table)


def _row(hit: Hit) -> reports.HitRow:
    around = bool(hit.before or hit.after)
    return reports.HitRow(
        store=hit.store,
        **named(hit.key),
        id=hit.id,
        position=hit.position,
        time=hit.time,
        role=hit.role,
        name=hit.name,
        marks=list(hit.marks),
        unread=hit.unread or None,
        score=hit.score,
        snippet=hit.snippet,
        words=hit.has_words,
        before=list(hit.before) if around else UNSET,
        after=list(hit.after) if around else UNSET,
    )
