"""The hits of a search for people: memory, sender, time, and the matching text."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from memctl.dialects.live import tags
from memctl.location import visible
from memctl.ops.search import Hit, SearchReport
from memctl.reports.search import NeighbourRow
from memctl.text.numbers import count, minute

_INDENT = 3


def hits(report: SearchReport, *, several: bool) -> RenderableType:
    """Draw the hits of a search, best first; ``several`` adds the store of each hit."""
    if not report.hits:
        return Text(f"No {report.noun} answers the query.", "dim")
    parts: list[Text] = []
    for number, hit in enumerate(report.hits, 1):
        parts.append(Text.assemble((f"{number}. ", "bold"), heading(hit, several=several)))
        parts += [_neighbour(one) for one in hit.before]
        parts.append(Text(" " * _INDENT).append_text(snippet(hit)))
        parts += [_neighbour(one) for one in hit.after]
        parts.append(Text())
    searched = count(report.index.messages, report.noun)
    if report.index.messages:
        parts.append(Text(f"{number_of_hits(report)} in {searched}", "dim"))
    return Group(*parts)


def number_of_hits(report: SearchReport) -> str:
    """Return the number of hits in words, such as ``2 of 38 hits`` or ``10 of at least 99 hits``.

    The number of all hits is left out if it is not known.
    """
    shown, found = len(report.hits), report.found
    if found is None or (found == shown and report.complete):
        return count(shown, "hit")
    least = "" if report.complete else "at least "
    some = "" if found == shown else f"{shown:,} of "
    return f"{some}{least}{count(found, 'hit')}"


def heading(hit: Hit, *, several: bool = False) -> Text:
    """Draw the memory, sender, time and marks of a hit; ``several`` adds its store."""
    names = [visible(name) for name in hit.key[:2] if name] or ["''"]
    text = Text(style="bold")
    if several:
        text.append(f"{hit.store}  ", "not bold cyan")
    text.append(" / ".join(names))
    if hit.key.part:
        text.append(f" ({visible(hit.key.part)})")
    place = "" if hit.position is None else f" #{hit.position}"
    text.append(place, "not bold dim")
    text.append(f"  {_speaker(hit)}", "not bold green")
    if hit.time:
        text.append(f"  {visible(minute(hit.time))}", "not bold dim")
    for mark in tags(hit.marks, hit.unread):
        text.append(f"  [{visible(mark)}]", "not bold yellow")
    if not hit.has_words:
        text.append("  none of the words", "not bold dim")
    return text


def _speaker(one: Hit | NeighbourRow) -> str:
    role = visible(one.role or "?")
    return f"{visible(one.name)} ({role})" if one.name and one.name != one.role else role


def snippet(hit: Hit) -> Text:
    """Draw the matching text of a hit, with its matches underlined."""
    text = Text()
    at = 0
    for start, end in hit.spans:
        text.append(visible(hit.snippet[at:start]))
        text.append(visible(hit.snippet[start:end]), "bold underline")
        at = end
    text.append(visible(hit.snippet[at:]))
    return text


def _neighbour(one: NeighbourRow) -> Text:
    return Text(f"{' ' * _INDENT}#{one.position} {_speaker(one)}: {visible(one.text)}", "dim")
