"""``memctl export --as markdown``: readable, harmless, and written again only where it changed."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from memctl.model import MemoryKey, StoredMessage
from memctl.ops.export import markdown
from memctl.ops.export.folder import file_name
from memctl.testing import samples
from tests.support.cli import FRIDAY, Run, fails, fill, report

ACTIVE = {"html_block", "html_inline", "image"}
PIECES = [
    *("`", "```", "~~~", "<", "b>", "</b>", "<!--", "![", "](y)", "\n", "\r", " ", "    ", "\t"),
    *("- ", "1. ", "\\", "> ", "x", "é"),
]


def rendered(content: object) -> str:
    value = {"id": "1", "name": "Friday", "role": "assistant", "content": content}
    return "".join(markdown.message(StoredMessage("1", orjson.dumps(value), ("a`b", "c"))))


def kinds(text: str) -> set[str]:
    tokens = MarkdownIt("commonmark").parse(text)
    return {t.type for token in tokens for t in (token, *(token.children or ()))}


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "a <b>c</b> <!-- d",
        "![x](https://tracker.example/?q=secret)",
        "- x\n  ```\n<script>y</script>",
        "``` <b>\n<i>",
        "`\n<b>\n`<i>`",
        "\t<script>x</script>",
        "    code\r<script>x</script>",
        "[![x](a)](b) `![y](c)`",
        "<img src=x\nonerror=y>",
    ],
)
def test_markdown_what_a_reader_would_obey_is_shown(text: str) -> None:
    assert not kinds(rendered(text)) & ACTIVE


@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
def test_markdown_no_text_is_obeyed(text: str) -> None:
    assert not kinds(rendered(text)) & ACTIVE


@pytest.mark.slow
@pytest.mark.parametrize(
    "link",
    [
        "[x](javascript:alert(1))",
        "[x](JaVaScRiPt&#58;alert(1))",
        "[x]\n\n[x]: vbscript:go",
        "<javascript:alert(1)>",
        "[x](data:text/html;base64,AAAA)",
    ],
)
def test_markdown_no_link_runs_a_script(link: str) -> None:
    parser = MarkdownIt("commonmark")
    parser.validateLink = lambda url: True  # type: ignore[method-assign]  # noqa: ARG005
    tokens = parser.parse(rendered(link))
    assert not [
        child for one in tokens for child in one.children or () if child.type == "link_open"
    ]
    kept = "[page](https://example.org/a?b=c), [here](notes.md), [me](mailto:a@b.org)"
    assert kept in rendered(kept)


def test_markdown_large_text_is_the_same_in_pieces() -> None:
    text = rendered("<b>![x](y) é\r\n\t\x1b" * 50_000)
    assert text.count("> &lt;b>!\\[x]\\(y) é\n> \t\\x1b&lt;b>") == 1
    assert text.count("&lt;b>!\\[x]\\(y) é\n> \t\\x1b") == 50_000
    assert not kinds(text) & ACTIVE
    for length in range(64 * 1024 - 4, 64 * 1024 + 2):
        text = rendered("x" * length + "!![y](z)\n" + "x" * 300_000)
        assert "!!\\[y]\\(z)\n" in text


def test_markdown_markup_stays_inside_its_message_and_code_as_it_is() -> None:
    text = rendered("Use:\n\n```c++\nvector<int> x; // ![no](image)") + rendered("next")
    assert "> vector<int> x; // ![no](image)\n" in text
    assert text.count("\n## Friday `a'b` `c`\n") == 2
    tokens = MarkdownIt("commonmark").parse(text)
    assert [t.content for t in tokens if t.type == "fence"] == ["vector<int> x; // ![no](image)\n"]
    assert sum(t.type == "heading_open" for t in tokens) == 2


def test_markdown_tools_are_folded_whatever_they_say() -> None:
    evil = "````\n</details>\x1b[31m"
    text = rendered(
        [
            {"type": "tool_use", "name": "<b>", "input": {"a": evil}},
            {"type": "tool_result", "name": "t", "output": [{"type": "text", "text": evil}]},
            {"type": "thinking", "thinking": "hm"},
            "odd",
        ]
    )
    assert text.count("<details>") == 4
    assert "<summary>→ &lt;b></summary>" in text
    assert "`````\n````\n</details>\\x1b[31m\n`````\n" in text
    fences = [t for t in MarkdownIt("commonmark").parse(text) if t.type == "fence"]
    assert len(fences) == 4
    assert "\x1b" not in text


def test_markdown_value_nested_too_deep_leaves_the_rest(run: Run, tmp_path: Path) -> None:
    call = [{"type": "tool_use", "id": "c", "name": "look", "input": "?"}]
    deep = '{"a":' * 1020 + "1" + "}" * 1020
    value = {"id": "1", "name": "F", "role": "assistant", "content": call, "metadata": {}}
    text = orjson.dumps({**value, "timestamp": "2026-01-01 10:00:00"}).decode()
    store = tmp_path / "deep.ndjson"
    message = StoredMessage("1", text.replace('"?"', deep).encode())
    asyncio.run(fill(str(store), {KEYS[0]: [message, *samples.entries(2)]}))
    assert run("export", store, "--as", "markdown", "-o", tmp_path / "pages").exit_code == 0
    written = (tmp_path / "pages" / "ada" / "kyoto.md").read_text()
    assert "(nested too deep to be shown)" in written
    assert written.count("\n## ") == 3


KEYS = [
    *(MemoryKey("ada", "kyoto"), MemoryKey("Ada", "kyoto"), MemoryKey("ADA", "kyoto")),
    *(MemoryKey("", ""), MemoryKey("..", "../../etc/passwd"), MemoryKey("a:b", '*?"<>|')),
    *(MemoryKey("a/b", "👩‍💻"), MemoryKey("a_b", "🍁"), MemoryKey("con", "nul.txt")),
    *(
        MemoryKey("readme.md", "x"),
        MemoryKey("README", "README"),
        MemoryKey("x" * 1000, "京" * 999),
    ),
    *(
        MemoryKey("\u00e9", "x"),
        MemoryKey("e\u0301", "x"),
        MemoryKey("a.", "-rf"),
        MemoryKey("\0", "\n"),
    ),
    *(MemoryKey("s", "a+b"), MemoryKey("s", "a", "b"), MemoryKey("s", "a", "agent.memory")),
]


def test_markdown_every_memory_has_a_file_of_its_own_on_every_file_system() -> None:
    names = [file_name(key, ".md") for key in KEYS]
    assert len({name.casefold() for name in names}) == len(KEYS)
    for name in names:
        assert re.fullmatch(r"[^/]+/[^/]+\.md", name)
        for part in name.split("/"):
            assert len(part.encode()) <= 255
            assert not re.search(r'[\\:*?"<>|\x00-\x1f]|^[.~ -]|[. ]$', part), part
    assert (
        file_name(MemoryKey("ada", "kyoto", "agent.memory"), ".md") == "ada/kyoto+agent.memory.md"
    )
    assert "京都" in file_name(MemoryKey("京都", "x"), ".md")


@pytest.mark.slow
@given(st.text(max_size=40), st.text(max_size=40))
def test_markdown_two_names_are_two_files(one: str, other: str) -> None:
    same = file_name(MemoryKey(one, "s"), ".md") == file_name(MemoryKey(other, "s"), ".md")
    assert same == (one == other)


def times(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_markdown_only_what_changed_is_written(run: Run, tmp_path: Path) -> None:
    store, folder = f"sqlite:///{tmp_path}/a.db", tmp_path / "conversations"
    asyncio.run(fill(store, {key: samples.entries(3) for key in KEYS[:1]}))
    asyncio.run(fill(store, {MemoryKey("bob", "one"): samples.entries(3)}))
    export = ("export", store, "--as", "markdown", "-o", folder, "--json")
    dry = report(run(*export, "--dry-run"))
    assert dry["memories"]["written"] == 2
    assert not folder.exists()
    assert report(run(*export))["memories"] == dry["memories"]
    first = times(folder)
    assert set(first) == {"README.md", "ada/kyoto.md", "bob/one.md"}
    assert {path.stat().st_mode & 0o777 for path in folder.rglob("*.md")} == {0o600}
    assert report(run(*export))["memories"]["unchanged"] == 2
    assert times(folder) == first
    assert run("mark", "add", store, "pinned", "--user", "bob", "--last", "1").exit_code == 0
    found = report(run(*export))
    assert (found["memories"]["written"], found["messages"]["written"]) == (1, 3)
    changed = times(folder)
    assert {name for name in changed if changed[name] != first[name]} == {"bob/one.md"}
    assert "`pinned`" in (folder / "bob" / "one.md").read_text()


def test_markdown_what_is_gone_stays_unless_pruned(run: Run, tmp_path: Path) -> None:
    store, folder = tmp_path / "a.ndjson", tmp_path / "conversations"
    asyncio.run(fill(str(store), {key: samples.entries(2) for key in KEYS if not key.part}))
    export = ("export", store, "--as", "markdown", "-o", folder, "--json")
    written = report(run(*export))["memories"]["written"]
    assert written == len(times(folder)) - 1
    (folder / "notes.txt").write_text("mine")
    (folder / "ada" / "notes.md").write_text("mine")
    asyncio.run(fill(str(tmp_path / "b.ndjson"), {KEYS[1]: samples.entries(2)}))
    (tmp_path / "b.ndjson").replace(store)
    assert report(run(*export))["removed"] == []
    index = (folder / "README.md").read_text()
    assert index.count("](") == written
    assert f"\n{written} memories\n" in index
    for link in re.findall(r"\]\((.*?)\)", index):
        assert (
            folder / re.sub("%(..)", lambda m: chr(int(m[1], 16)), link)
        ).exists() or "%" in link
    only = report(run(*export, "--prune", "--user", "ada", "--user", "Ada"))
    assert only["removed"] == [str(folder / "ada" / "kyoto.md")]
    assert len(report(run(*export, "--prune", "--dry-run"))["removed"]) == written - 2
    assert len(report(run(*export, "--prune"))["removed"]) == written - 2
    assert set(times(folder)) == {
        "README.md",
        file_name(KEYS[1], ".md"),
        "notes.txt",
        "ada/notes.md",
    }


def test_markdown_file_that_is_not_whole_is_written_again(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    export = ("export", FRIDAY, "--user", "ada", "--session", "kyoto", "--as", "markdown")
    report(run(*export, "-o", folder, "--json"))
    path = folder / "ada" / "kyoto.md"
    whole = path.read_bytes()
    for damaged in (whole[:-10], whole[20:], b"", whole.replace(b"digest", b"digit!")):
        path.write_bytes(damaged)
        assert report(run(*export, "-o", folder, "--json"))["memories"]["written"] == 1
        assert path.read_bytes() == whole


def test_markdown_refusals(run: Run, filled: str, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "README.md").write_text("# mine\n")
    options = ("export", filled, "--as", "markdown")
    fails(run(*options, "-o", taken), 2, "export --as markdown did not write", "--force")
    assert (taken / "README.md").read_text() == "# mine\n"
    fails(run(*options, "-o", tmp_path / "a.txt"), 2, "unrecognised file extension for markdown")
    fails(
        run(*options, "-o", tmp_path / "a.md", "--prune"), 2, "--prune needs a folder of Markdown"
    )
    fails(run(*options, "-o", tmp_path / "c", "--prune", "--last", "1"), 2, "selection of messages")
    fails(run(*options, "-o", tmp_path / "c", "--user", "nobody"), 4, "nobody")


def test_markdown_of_nothing_but_damage_leaves_no_folder(
    run: Run, database: str, tmp_path: Path
) -> None:
    folder = tmp_path / "md"
    asyncio.run(fill(database, {samples.key(0): samples.entries(3)}))
    path = database.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as damaging, damaging:
        damaging.execute("UPDATE message SET msg = '5' WHERE rowid = 2")
    words = ("export", database, "--as", "markdown", "-o", folder)
    fails(run(*words), 8, "is damaged")
    assert not folder.exists()
    asyncio.run(fill(database, {samples.key(1): samples.entries(3)}))
    fails(run(*words), 7, "is damaged")
    assert len(list(folder.rglob("*.md"))) == 2  # the other memory, and README.md
