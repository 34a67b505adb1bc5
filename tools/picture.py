"""Draws the pictures of pages: docs/report.png, on a month of conversations, and docs/page.png.

``python -m tools.picture`` draws them again, in Chromium.  The stores and the time of the report
are the same each time, so that the pictures change only with memctl.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from base64 import b64decode
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from memctl.ops.statistics import StatisticsOptions, collect
from memctl.output.report_page import About, write
from memctl.registry import make_store, parse, title_of
from memctl.selection import Selection
from memctl.version import __version__
from tests.support.chromium import started
from tools import demo

DOCS = Path(__file__).resolve().parent.parent / "docs"
STORE = "sqlite:///agents.db?state=sessions"
NOW = datetime(2026, 11, 24, 18)
DAYS = 31
REPORT = 1140, "#tokens .stack + ul"
PAGE = 900, "article:last-of-type"
"""The width of a picture, and the part of the page at whose end it ends."""
USERS = ("ada", "bob", "chen.wei", "dmitri", "emma", "farid", "giulia", "hana", "jürgen", "ליאור")
TOPICS = ("kyoto", "invoice", "report", "garden", "taxes", "visit")
TOOLS = ("search", "calendar", "read_file", "weather", "send_mail")
SENTENCES = (
    "Could you find a train to Kyoto on Friday afternoon, with two seats next to each other?",
    "The invoice is from October.",
    "I looked at three hotels near the station, and the second one has step-free access.",
    "Thanks!",
    "Please remind me on Sunday.",
    "The report is due next week, so a first draft on Monday would leave time for corrections.",
    "It rains on Tuesday, and the forecast for the rest of the week is dry with up to 17 degrees.",
    "请帮我订一张去北京的火车票。",
    "What did we decide last time?",
)


def main() -> None:
    """Draw them."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)
        os.chdir(folder)
        page = folder / "report.html"
        asyncio.run(report(page))
        (DOCS / "report.png").write_bytes(draw(page, *REPORT))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        demo.make(folder)
        export = ("export", "agents.db", "--user", "ada", "--session", "kyoto", "-o", "ada.html")
        memctl(folder, *export)
        (DOCS / "page.png").write_bytes(draw(folder / "ada.html", *PAGE))


def memctl(folder: Path, *words: str) -> None:
    """Run memctl in a folder."""
    command = [sys.executable, "-m", "memctl", "-q", *words]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def make(folder: Path) -> None:
    """Put the store into a folder."""
    incoming = folder / "incoming"
    incoming.mkdir()
    chance = Random(7)
    for number, user in enumerate(USERS):
        for session in range(len(TOPICS) - number // 2):
            content = list(_conversation(chance, user, session, number))
            memory = {"_compressed_summary": "They plan a journey.", "content": content}
            file = incoming / f"{user}_{user}-{TOPICS[session]}.json"
            file.write_text(json.dumps({"memory": memory}, ensure_ascii=False), "utf-8")
    memctl(folder, "import", "incoming", STORE, "--no-backup")


def _conversation(chance: Random, user: str, session: int, rank: int) -> Iterator[list[Any]]:
    """Yield the messages of a session, more of them on later days, for users of a lower rank."""
    place = 0
    for day in range(session * 4, DAYS):
        at = (NOW - timedelta(DAYS - 1 - day)).replace(hour=8)
        weekend = 0.3 if at.weekday() > 4 else 1
        for _ in range(int((1 + day / 9) * weekend * 8 / (rank + 3) * chance.uniform(0.5, 1.5))):
            at += timedelta(minutes=chance.randrange(5, 140))
            if at > NOW:
                return
            for message in _exchange(chance, user):
                place += 1
                at += timedelta(seconds=9)
                told = {"id": f"{user}{session}-{place}", "metadata": {}, "timestamp": f"{at}.000"}
                marks = ["compressed"] if day < 9 else []
                yield [told | message, marks]


def _exchange(chance: Random, user: str) -> Iterator[dict[str, Any]]:
    """Yield a question, sometimes a call with its result, and the answer."""

    def said() -> str:
        return " ".join(chance.choices(SENTENCES, k=chance.choice((1, 1, 2, 3, 6))))

    yield {"name": user, "role": "user", "content": said()}
    if chance.random() < 0.4:
        tool, id = chance.choices(TOOLS, (5, 3, 3, 2, 1))[0], f"call_{chance.randrange(10**9)}"
        call = {"type": "tool_use", "id": id, "name": tool, "input": {"query": said()}}
        yield {"name": "Friday", "role": "assistant", "content": [call]}
        if chance.random() < 0.995:
            output = " ".join(said() for _ in range(chance.choice((1, 2, 4, 12))))
            result = {"type": "tool_result", "id": id, "name": tool, "output": output}
            yield {"name": "system", "role": "system", "content": [result]}
    yield {"name": "Friday", "role": "assistant", "content": said()}


async def report(page: Path) -> None:
    """Write the page of the store."""
    async with make_store(parse(STORE)) as store:
        options = StatisticsOptions(context_limit=16_000, now=NOW)
        found = await collect(store, Selection(), options)
        about = About(
            *("agents.db", "agents.db", title_of(store.location), NOW.astimezone()),
            counted="estimated",
            version=__version__,
            words=("agents.db",),
            context_limit=options.context_limit,
        )
    with page.open("w", encoding="utf-8") as file:
        write(file, about, found, [])


def draw(page: Path, width: int, last: str) -> bytes:
    """Return the top of a page as PNG."""
    with started() as chromium:
        chromium.open(page, width=width)
        end = "return document.querySelector(arguments[0]).getBoundingClientRect().bottom"
        height = chromium.run(end, last) + 14
        part = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        taken = chromium.command("Page.captureScreenshot", captureBeyondViewport=True, clip=part)
    return b64decode(taken["data"])


if __name__ == "__main__":
    main()
