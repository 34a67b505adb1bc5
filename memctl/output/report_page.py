"""The page of ``memctl report``: charts and tables of the statistics of a store, in one file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TextIO

from memctl import html
from memctl.ops.statistics import Statistics


@dataclass(frozen=True, slots=True)
class About:
    """What a page says of itself.

    ``title`` is its heading.  ``store`` is the label of the store, ``what`` its kind in words.
    ``selection`` says in words which messages were selected, empty for all.  ``now`` is the local
    time of the report, with its zone.  ``counted`` says how tokens were counted, ``version`` is
    that of memctl.  ``noun`` names the counted things in the singular: ``message`` or ``fact``.
    ``words`` are the words of a command that name the store and the selected memories, not yet
    quoted: ``("agents.db", "--user=ada")``.  ``no_findings`` says why findings were left out.
    ``data`` is the report as a JSON object, for programs.
    """

    title: str
    store: str
    what: str
    now: datetime
    counted: str
    version: str
    words: tuple[str, ...]
    selection: str = ""
    noun: str = "message"
    context_limit: int | None = None
    pseudonyms: bool = False
    no_findings: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


def write(file: TextIO, about: About, statistics: Statistics, runs: list[dict[str, Any]]) -> None:
    """Write the page.  ``runs`` are the last runs on the store, as rows of ``history``."""
    file.write(html.opening(about.title, ""))
    file.write(f"<h1>{html.name(about.title)}</h1>\n<p>{statistics.messages:,} {about.noun}s</p>\n")
    file.write(f"<p>{len(runs)} runs</p>\n")
    file.write(html.closing())
