"""The screens of the browser by key, each with its title and the factory of its list."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from memctl.browser.catalogue import Catalogue
from memctl.browser.findings import Findings
from memctl.browser.marks import Marks
from memctl.browser.names import Names
from memctl.browser.pane import ListPane, Signs
from memctl.browser.runs import Runs
from memctl.browser.search import Search
from memctl.browser.source import Source


class Setting(NamedTuple):
    """The objects that all screens share: the store, its memories and counts, the signs."""

    source: Source
    catalogue: Catalogue
    signs: Signs


class Screen(NamedTuple):
    """A screen: its title, and the factory of its list."""

    title: str
    make: Callable[[Setting], ListPane]


SCREENS: dict[str, Screen] = {
    "1": Screen("Memories", lambda setting: Names(setting.catalogue, setting.signs)),
    "2": Screen("Search", lambda setting: Search(*setting)),
    "3": Screen("Marks", lambda setting: Marks(*setting)),
    "4": Screen("Findings", lambda setting: Findings(*setting)),
    "5": Screen("Runs", lambda setting: Runs(setting.source, setting.signs)),
}
"""The screens by their keys."""

SEARCH = "2"
"""The key of the screen that the key s opens."""
