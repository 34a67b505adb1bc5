"""``memctl export --as html``: pages that anybody can read, and that obey nothing stored."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from zipfile import ZipFile

import pytest

from memctl import testing
from memctl.machine.system import user_name
from memctl.model import MemoryKey, StoredMessage
from memctl.ops.export import run as exporting
from memctl.testing import samples
from memctl.testing.drive import write_all
from memctl.version import __version__
from tests.support.backends import BACKENDS, FACT_BACKENDS, params
from tests.support.chromium import Chromium
from tests.support.cli import Run, fails, fill, report
from tests.support.servers.pool import Servers, start

ADA = MemoryKey("ada", "kyoto")
BOB = MemoryKey("bob", "oslo")
ELEMENTS = {
    *("html", "head", "meta", "title", "style", "body", "header", "nav", "main", "section"),
    *("h1", "h2", "h3", "p", "div", "span", "bdi", "a", "time", "ul", "li", "dl", "dt", "dd"),
    *("article", "details", "summary"),
}
ATTRIBUTES = {
    *("lang", "charset", "http-equiv", "content", "name", "class", "id", "href", "dir"),
    *("datetime", "open", "aria-label", "aria-labelledby"),
}
EVIL = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</title></style><script>alert(1)</script>",
    "javascript:alert(1)",
    "--><script>alert(1)</script>",
    "\x1b[31mred\x1b]0;title\x07",
    "\u202egnp.exe\u2066\u200f",
    "NUL\0 and half a pair \ud800",
    "x" * 60_000,
    "https://tracker.example/?q=secret",
    "two\nlines\r\nof \u2028text",
]


def message(role: str, name: str, content: Any, time: str, *marks: str) -> StoredMessage:
    value = {"id": time, "name": name, "role": role, "content": content, "metadata": {}}
    return StoredMessage(time, json.dumps({**value, "timestamp": time}).encode(), marks)


class Page(HTMLParser):
    """The elements, attributes, links and texts of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.source = path.read_text("utf-8")
        self.feed(self.source)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self._open.extend([tag] * (tag != "meta"))
        self.attributes |= {name for name, _ in attrs}
        found = dict(attrs)
        self.links.extend(filter(None, [found.get("href")]))
        self.ids.extend(filter(None, [found.get("id")]))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data if "style" not in self._open else ""

    def is_harmless(self) -> None:
        """Check that the page has only its own elements, and links within itself and its folder."""
        assert set(self.elements) <= ELEMENTS
        assert self.attributes <= ATTRIBUTES
        assert len(self.ids) == len(set(self.ids))
        for link in self.links:
            assert link.removeprefix("#") in self.ids or link == "../index.html"
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", self.source)
        assert "default-src 'none'" in self.source
        assert "script-src" not in self.source


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """An archive in which names, texts, marks, times and tools are hostile."""
    path = tmp_path / "hostile.ndjson"
    memories = {}
    for number, evil in enumerate(EVIL):
        call = {"type": "tool_use", "id": "c", "name": evil, "input": {evil: evil}}
        output = [{"type": "text", "text": evil}, {"type": evil, "x": evil}]
        address = {"type": "url", "url": evil}
        data = {"type": "base64", "media_type": evil, "data": "AAAA"}
        blocks = [
            {"type": "thinking", "thinking": evil},
            call,
            {"type": "tool_result", "id": "c", "name": evil, "output": output},
            {"type": "image", "source": address},
            {"type": "audio", "source": data},
            {"type": evil[:50], "x": evil},
        ]
        name = evil[:200].replace("\ud800", "")
        said = message(evil[:200], evil[:200], evil, evil[:200])
        memories[MemoryKey(name, name, name)] = [
            said._replace(id="1", marks=(evil[:200],)),
            message("assistant", "F", blocks, f"2026-10-{number + 1:02} 10:00:00"),
        ]
    asyncio.run(fill(str(path), memories, summary=EVIL[0]))
    return path


def test_html_conversation_as_people_read_it(run: Run, tmp_path: Path) -> None:
    call = {"type": "tool_use", "id": "c", "name": "look", "input": {"where": "京都"}}
    picture = {"type": "base64", "media_type": "image/png", "data": "A" * 4000}
    output = [{"type": "text", "text": "8 °C"}, {"type": "image", "source": picture}]
    result = {"type": "tool_result", "id": "c", "name": "look", "output": output}
    ada = [
        message("user", "ada", "How cold\nis it?", "2026-10-02 09:14:00.100", "compressed"),
        message(
            *("assistant", "Friday"),
            [{"type": "thinking", "thinking": "Look."}, call],
            "2026-10-02T09:15:00+02:00",
        ),
        message("system", "system", [result], "2026-10-03 09:16:00"),
    ]
    store, page = tmp_path / "talk.ndjson", tmp_path / "talk.html"
    asyncio.run(fill(str(store), {ADA: ada, BOB: []}, summary="A trip."))
    said = run("export", store, "-o", page)
    assert said.exit_code == 0, said.stderr
    assert page.stat().st_mode & 0o777 == 0o600
    text = page.read_text("utf-8")
    exported = re.search(r"Exported by (.*) on (.{16}) \S+ with memctl (.*)\. Times", text)
    assert exported is not None
    assert exported[1] == user_name()
    assert abs(datetime.now() - datetime.fromisoformat(exported[2])) < timedelta(minutes=2)
    assert exported[3] == __version__
    assert text[text.index("<header>") : text.index('<section aria-labelledby="memory-2">')] == (
        f"""<header>
<h1><bdi>Conversations</bdi></h1>
<p class="about">2 memories, 3 messages.
{exported[0]} are as stored.</p>
</header>
<nav aria-label="Contents">
<details open>
<summary>Contents</summary>
<ul class="memories">
<li><a href="#memory-1"><bdi>ada</bdi> / <bdi>kyoto</bdi></a> \
<span class="about">3 messages, 2026-10-02 to 2026-10-03</span></li>
<li><a href="#memory-2"><bdi>bob</bdi> / <bdi>oslo</bdi></a> \
<span class="about">0 messages</span></li>
</ul>
</details>
</nav>
<main>
<section aria-labelledby="memory-1">
<h2 class="memory" id="memory-1"><bdi>ada</bdi> / <bdi>kyoto</bdi></h2>
<div class="summary">
<h3>Summary</h3>
<div class="text" dir="auto">A trip.</div>
</div>
<h3 class="day"><time datetime="2026-10-02">2026-10-02</time></h3>
<article class="user unread" id="1-1">
<header><span class="who"><bdi>ada</bdi></span> <span class="role"><bdi>user</bdi></span> \
<time class="time" datetime="2026-10-02T09:14:00">09:14</time> \
<a class="number" href="#1-1">#1</a> <span class="mark quiet"><bdi>compressed</bdi></span></header>
<div class="text" dir="auto">How cold
is it?</div>
</article>
<article class="assistant" id="1-2">
<header><span class="who"><bdi>Friday</bdi></span> <span class="role"><bdi>assistant</bdi></span> \
<time class="time" datetime="2026-10-02T09:15:00+02:00">09:15 UTC+02:00</time> \
<a class="number" href="#1-2">#2</a></header>
<details><summary><bdi>thinking</bdi>, 5 characters</summary>
<div class="text" dir="auto">Look.</div>
</details>
<details><summary><bdi>calls look</bdi>, 19 characters</summary>
<div class="code" dir="auto">{{
  &#34;where&#34;: &#34;京都&#34;
}}</div>
</details>
</article>
<h3 class="day"><time datetime="2026-10-03">2026-10-03</time></h3>
<article class="other" id="1-3">
<header><span class="who"><bdi>system</bdi></span> \
<time class="time" datetime="2026-10-03T09:16:00">09:16</time> \
<a class="number" href="#1-3">#3</a></header>
<details><summary><bdi>result of look</bdi>, 30 characters</summary>
<div class="code" dir="auto">8 °C
[image] image/png, 3.0 kB</div>
</details>
</article>
</section>
"""
    )


def test_html_of_facts_has_their_dates_and_what_is_known(run: Run, tmp_path: Path) -> None:
    samples.use(FACT_BACKENDS["vault"](None).style)  # type: ignore[arg-type]
    store = tmp_path / "vault"
    fact = {
        "text": "Ada likes <b>maples</b>.",
        "created_at": "2026-10-01T10:00:00+00:00",
        "metadata": {"tags": ["a", "b"], "<i>": {"n": 1}, "url": "https://tracker.example/"},
    }
    entry = StoredMessage("f1", json.dumps({"id": "f1", **fact}).encode())
    asyncio.run(fill(f"vault:{store}", {MemoryKey("", ""): [entry]}))
    assert run("export", f"vault:{store}", "-o", tmp_path / "facts.html").exit_code == 0
    samples.use(samples.Style())
    page = Page(tmp_path / "facts.html")
    page.is_harmless()
    assert "1 memory, 1 fact." in page.text
    assert "Ada likes <b>maples</b>." in page.text
    assert '<dt><bdi>tags</bdi></dt><dd dir="auto">a, b</dd>' in page.source
    assert "&lt;i&gt;" in page.source


def test_html_obeys_nothing(run: Run, hostile: Path, tmp_path: Path) -> None:
    assert run("export", hostile, "-o", tmp_path / "all.html").exit_code == 0
    assert run("export", hostile, "--as", "html", "-o", tmp_path / "pages").exit_code == 0
    Page(tmp_path / "all.html").is_harmless()
    pages = sorted((tmp_path / "pages").rglob("*.html"))
    assert len(pages) == len(EVIL) + 1
    for path in pages:
        if path.name != "index.html":
            Page(path).is_harmless()
    index = Page(tmp_path / "pages" / "index.html")
    assert set(index.elements) <= ELEMENTS
    linked = {tmp_path / "pages" / unquote(link) for link in index.links}
    assert linked | {tmp_path / "pages" / "index.html"} == set(pages)
    page = Page(tmp_path / "all.html")
    for shown in (EVIL[0], "\\x1b[31mred", "\\u202egnp.exe\\u2066\\u200f", "NUL\\x00", "\\ud800"):
        assert shown in page.text
    assert "text, 60,000 characters" in page.text
    assert not re.search("<bdi>[^<]{320}", page.source)


def test_html_says_how_much_of_a_long_text_is_left_out(run: Run, tmp_path: Path) -> None:
    entry = message("user", "ada", "x" * 1_000_003, "2026-10-02 09:14:00")
    asyncio.run(fill(f"{tmp_path}/a.ndjson", {ADA: [entry]}))
    assert run("export", tmp_path / "a.ndjson", "-o", tmp_path / "a.html").exit_code == 0
    text = Page(tmp_path / "a.html").text
    assert "text, 1,000,003 characters" in text
    assert "… 3 more characters are left out" in text
    assert text.count("x") - len(str(tmp_path)) < 1_000_003


def test_html_value_nested_too_deep_leaves_the_rest(run: Run, tmp_path: Path) -> None:
    call = [{"type": "tool_use", "id": "c", "name": "look", "input": "?"}]
    entry = message("assistant", "F", call, "2026-10-02 09:14:00")
    deep = b'{"a":' * 1020 + b"1" + b"}" * 1020
    entries = [entry._replace(message=entry.message.replace(b'"?"', deep)), *samples.entries(2)]
    asyncio.run(fill(f"{tmp_path}/a.ndjson", {ADA: entries}))
    assert run("export", tmp_path / "a.ndjson", "-o", tmp_path / "a.html").exit_code == 0
    page = Page(tmp_path / "a.html")
    assert "(nested too deep to be shown)" in page.text
    assert page.elements.count("article") == 3


def test_html_keeps_the_numbers_of_selected_messages(run: Run, filled: str, tmp_path: Path) -> None:
    name = samples.key(3)
    who = ("--user", name.user, "--session", name.session)
    assert run("export", filled, *who, "--last", "2", "-o", tmp_path / "a.html").exit_code == 0
    assert Page(tmp_path / "a.html").ids == ["memory-1", "1-39", "1-40"]
    words = ("export", filled, *who, "--last", "2", "--as", "html", "-o", tmp_path / "pages")
    assert run(*words).exit_code == 0
    [path] = (tmp_path / "pages").glob("*/*.html")
    assert Page(path).ids == ["memory-0", "39", "40"]


def untimed(page: str) -> str:
    """Return a page without the time of its export."""
    return re.sub(r" on \S+ \S+ \S+ with memctl", "", page)


@pytest.mark.parametrize(
    ("options", "title"),
    [
        ([], "Conversations"),
        (["--user", "user1"], "user1 / session3"),
        (["--user", "user0"], "user0"),
        (["--user", "user0", "--title", "Case <17>"], "Case &lt;17&gt;"),
    ],
)
def test_html_title_is_no_path(run: Run, filled: str, options: list[str], title: str) -> None:
    page = run("export", filled, "--as", "html", *options).stdout
    assert f"<h1><bdi>{title}</bdi></h1>" in page
    assert f"<title>{title}</title>" in page
    assert filled.removeprefix("sqlite://") not in page
    if options:
        assert f"selected: user {options[1]}." in page
    else:
        assert "selected" not in page


@pytest.mark.parametrize("form", ["html", "markdown"])
def test_html_pseudonyms(run: Run, tmp_path: Path, form: str) -> None:
    said = [message("user", "Ada Lovelace", "hi", "2026-10-02 09:14:00")]
    memories = dict.fromkeys((ADA, ADA._replace(session="oslo"), BOB), said)
    asyncio.run(fill(str(tmp_path / "a.ndjson"), memories))
    words = ("export", tmp_path / "a.ndjson", "--as", form, "--pseudonyms")
    page = run(*words).stdout
    for text in ("user 1", "user 2", "session 1", "session 2", "user"):
        assert text in page
    assert "user 3" not in page
    named = run(*words, "--user", "ada").stdout
    for name in ("ada", "kyoto", "oslo", "Ada Lovelace"):
        assert name in run(*words[:-1]).stdout
        assert name not in page + named
    folder, rows = tmp_path / "folder", tmp_path / "a.csv"
    fails(run(*words, "-o", folder), 2, "--pseudonyms needs a page")
    fails(run(*words[:2], "--pseudonyms", "-o", rows), 2, "--pseudonyms needs a page")
    both = (*words[:2], tmp_path / "a.ndjson", "-o", tmp_path / "b.zip", "--pseudonyms")
    fails(run(*both), 2, "needs one store")


@pytest.mark.slow
def test_html_is_unfolded_on_paper(run: Run, tmp_path: Path, chromium: Chromium) -> None:
    call = {"type": "tool_use", "id": "c", "name": "look", "input": {"where": "Okushiga"}}
    result = {"type": "tool_result", "id": "c", "name": "look", "output": "eight degrees"}
    said = [
        message("assistant", "F", [call], "2026-10-02 09:14:00"),
        message("system", "s", [result], "2026-10-02 09:15:00"),
    ]
    keys = [MemoryKey("ada", f"trip{number}") for number in range(25)]
    asyncio.run(fill(str(tmp_path / "a.ndjson"), dict.fromkeys(keys, said)))
    page = tmp_path / "a.html"
    assert run("export", tmp_path / "a.ndjson", "-o", page).exit_code == 0
    chromium.open(page)
    assert not chromium.run("return document.querySelector('article details').open")
    text = chromium.printed()
    for number in range(25):
        assert text.count(f"trip{number}\n") + text.count(f"trip{number} ") == 2, (
            "and in the contents"
        )
    assert text.count("Okushiga") == text.count("eight degrees") == 25
    assert run("export", tmp_path / "a.ndjson", "-o", page, "--open", "--force").exit_code == 0
    chromium.open(page)
    assert chromium.run("return document.querySelector('article details').open")


def test_html_exports_of_the_same_store_are_equal(run: Run, filled: str, tmp_path: Path) -> None:
    one, other = tmp_path / "one.html", tmp_path / "other.htm"
    assert run("export", filled, "-o", one).exit_code == 0
    assert run("export", filled, "-o", other).exit_code == 0
    assert untimed(one.read_text()) == untimed(other.read_text())
    assert untimed(run("export", filled, "--as", "html").stdout) == untimed(one.read_text())
    dry = report(run("export", filled, "-o", tmp_path / "dry.html", "--dry-run", "--json"))
    assert (dry["as"], dry["memories"]["written"]) == ("html", 4)
    assert not (tmp_path / "dry.html").exists()


def test_html_folder_is_kept_up_to_date(run: Run, filled: str, tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    export = ("export", filled, "--as", "html", "-o", folder, "--json")
    assert report(run(*export))["memories"]["written"] == 4
    files = {path: path.stat().st_mtime_ns for path in folder.rglob("*.html")}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert report(run(*export))["memories"]["unchanged"] == 4
    assert {path: path.stat().st_mtime_ns for path in files} == files
    name = samples.key(0)
    only = ("--user", name.user, "--session", name.session)
    assert run("delete", filled, *only, "--yes").exit_code == 0
    asyncio.run(fill(f"{tmp_path}/b.ndjson", {samples.key(1): samples.entries(2)}))
    export = ("export", tmp_path / "b.ndjson", *export[2:], "--prune")
    found = report(run(*export))
    assert (found["memories"]["written"], len(found["removed"])) == (1, 3)
    [page] = folder.glob("*/*.html")
    index = Page(folder / "index.html")
    assert [folder / unquote(link) for link in index.links] == [page]
    assert Page(page).links[0] == "../index.html"


def test_html_refusals(run: Run, filled: str, tmp_path: Path) -> None:
    words = ("export", filled, "--as", "html")
    (tmp_path / "taken.html").write_text("mine")
    fails(run(*words, "-o", tmp_path / "taken.html"), 2, "exists", "--force")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "index.html").write_text("<!doctype html>mine")
    fails(run(*words, "-o", tmp_path / "taken"), 2, "export --as html did not write", "--force")
    fails(run(*words, "-o", tmp_path / "a.txt"), 2, "unrecognised file extension for html")
    fails(run(*words, "-o", tmp_path / "a.html", "--prune"), 2, "--prune needs a folder")
    fails(run(*words, "-o", tmp_path / "a.html", "--clean"), 2, "--clean does not fit html")
    fails(run(*words, "-o", tmp_path / "c", "--rotate", "last:1"), 2, "--rotate needs a file")
    fails(run(*words, "-o", tmp_path / "a.html", "--min-messages", "101"), 9, "only 100 messages")
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".db") == [
        *("taken", "taken.html")
    ]
    rotated = report(run(*words, "-o", tmp_path / "a.html", "--rotate", "last:1", "--json"))
    assert re.fullmatch(r".*/a-\d{8}T\d{6}\.html", rotated["file"])


def test_html_of_damaged_memories_has_the_others(run: Run, database: str, tmp_path: Path) -> None:
    asyncio.run(fill(database, {samples.key(n): samples.entries(3) for n in range(2)}))
    with closing(sqlite3.connect(database.removeprefix("sqlite:///"))) as damaging, damaging:
        damaging.execute("UPDATE message SET msg = '5' WHERE rowid = 2")
    fails(run("export", database, "-o", tmp_path / "a.html"), 7, "is damaged")
    assert Page(tmp_path / "a.html").elements.count("article") == 3
    fails(run("export", database, "--as", "html", "-o", tmp_path / "pages"), 7, "is damaged")
    assert len(list((tmp_path / "pages").glob("*/*.html"))) == 1


def test_html_of_many_messages_proposes_a_folder(
    run: Run, filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "LARGE", 99)
    done = run("export", filled, "-o", tmp_path / "a.html")
    assert "a page of 100 messages is slow to open: --as html -o FOLDER" in " ".join(
        done.stderr.split()
    )
    folder = run("export", filled, "--as", "html", "-o", tmp_path / "pages")
    assert "slow" not in folder.stderr


@pytest.fixture(params=params({**BACKENDS, **FACT_BACKENDS}))
def any_place(
    request: pytest.FixtureRequest, servers: Servers, tmp_path: Path
) -> Iterator[testing.Place]:
    """A new and empty place of each store, of facts too."""
    backend = {**BACKENDS, **FACT_BACKENDS}[request.param](servers)
    samples.use(backend.style)
    yield testing.new_place(backend, tmp_path)
    samples.use(samples.Style())


def test_html_of_every_store(run: Run, any_place: testing.Place, tmp_path: Path) -> None:
    backend = any_place.backend
    entries = samples.entries(3)
    if backend.name in BACKENDS:
        entries += samples.nasty_entries({*backend.refuses, *backend.alters, "wide"})
    key = backend.only or backend.keys(0)

    async def write() -> None:
        async with any_place.store() as store:
            await write_all(store, [samples.sample(key, entries)])

    asyncio.run(write())
    page = tmp_path / "page.html"
    found = report(run("export", any_place.text, "-o", page, "--json"))
    written = Page(page)
    written.is_harmless()
    assert written.elements.count("article") == found["messages"]["written"]
    assert found["messages"]["written"] >= len(entries)  # some frameworks have results of their own
    packed = tmp_path / "page.zip"
    assert run("export", any_place.text, "-o", packed).exit_code == 0
    with ZipFile(packed) as whole:
        whole.extractall(tmp_path / "unpacked")
    again, archive = sorted((tmp_path / "unpacked").iterdir(), key=lambda path: path.suffix)
    assert run("verify", any_place.text, archive).exit_code == 0
    for part in ("<article", 'unread"', "<details", 'class="mark'):
        assert again.read_text().count(part) - (part == "<details") == written.source.count(part)


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of the example, and of texts in other scripts."""
    folder = tmp_path_factory.mktemp("talk")
    scripts = [
        message("user", "ליאור", "ما هو رقم الحجز؟\nPlease.", "2026-10-02 09:14:00"),
        message("assistant", "星期五", "总价是 ¥12,300。👩\u200d💻" * 40, "2026-10-03 09:14:00"),
        message("assistant", "Friday", "x" * 5000, "2026-10-03 09:15:00", "hint", "m" * 300),
    ]
    asyncio.run(fill(f"{folder}/talk.ndjson", {ADA: scripts, BOB: samples.entries(20)}))
    return folder


@pytest.fixture
def page(run: Run, talk: Path) -> Path:
    """The page, in a browser."""
    path = talk / "talk.html"
    if not path.exists():
        assert run("export", talk / "talk.ndjson", "-o", path).exit_code == 0
    return path


def test_html_page_asks_for_no_other_file_and_needs_no_script(
    chromium: Chromium, run: Run, hostile: Path, page: Path, tmp_path: Path
) -> None:
    path = tmp_path / "hostile.html"
    assert run("export", hostile, "-o", path).exit_code == 0
    for one in (path, page):
        chromium.open(one, scripts=False)
        assert chromium.requests() == [one.as_uri()]
        assert chromium.console() == []
        assert chromium.run("return document.scripts.length + document.images.length") == 0
    assert "#1" in chromium.names("link")


@pytest.mark.parametrize("width", [400, 1280])
def test_html_page_fits_the_window(chromium: Chromium, page: Path, width: int) -> None:
    chromium.open(page, width=width)
    chromium.run("for (const one of document.querySelectorAll('details')) one.open = true")
    assert chromium.sideways() == 0
    wider = (
        "[...document.querySelectorAll('article')].filter(one => one.scrollWidth > one.clientWidth)"
    )
    assert chromium.run(f"return {wider}.length") == 0


def test_html_page_is_accessible_in_light_and_dark(chromium: Chromium, page: Path) -> None:
    for dark in (False, True):
        chromium.open(page, dark=dark)
        found = start(chromium.violations)
        assert [one for one in found if one.startswith(("serious", "critical"))] == []
    ground = "return getComputedStyle(document.body).backgroundColor"
    dark_ground = chromium.run(ground)
    chromium.show(dark=True, media="print")
    card = "return getComputedStyle(document.querySelector('.assistant')).backgroundColor"
    assert chromium.run(card) == "rgb(255, 255, 255)"
    chromium.show()
    assert chromium.run(ground) != dark_ground


def test_html_page_shows_each_line_in_its_direction(chromium: Chromium, page: Path) -> None:
    chromium.open(page)
    sides = """
        const found = document.createRange(), text = document.querySelector('.user .text');
        const at = text.firstChild.data.indexOf("\\n") + 1, box = text.getBoundingClientRect();
        found.setStart(text.firstChild, 0); found.setEnd(text.firstChild, 1);
        const first = found.getBoundingClientRect();
        found.setStart(text.firstChild, at); found.setEnd(text.firstChild, at + 1);
        return [box.right - first.right, found.getBoundingClientRect().left - box.left];
    """
    assert chromium.run(sides) == [pytest.approx(0, abs=1), pytest.approx(0, abs=1)]
    turned = "return document.querySelector('.user').getBoundingClientRect().left"
    assert chromium.run(turned) > 640


def test_html_page_opens_at_a_message(chromium: Chromium, page: Path) -> None:
    chromium.open(page)
    chromium.run("document.querySelector('a[href=\"#2-20\"]').click()")
    place = "return document.getElementById('2-20').getBoundingClientRect().top"
    assert 0 <= chromium.run(place) < 900
    assert chromium.run("return document.querySelector(':target').id") == "2-20"
