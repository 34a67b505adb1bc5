"""The lists of the browser by the keys of their screens."""

from __future__ import annotations

from typing import Any

from memctl.browser.findings import Findings
from memctl.browser.marks import Marks
from memctl.browser.names import Names
from memctl.browser.pane import ListPane
from memctl.browser.runs import Runs
from memctl.browser.search import Search

SCREENS: dict[str, type[ListPane[Any]]] = {
    "1": Names,
    "2": Search,
    "3": Marks,
    "4": Findings,
    "5": Runs,
}
"""The lists by the keys of their screens."""
