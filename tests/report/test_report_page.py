"""The page of ``memctl report``, in Chromium as people see it."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from memctl.model import MemoryKey
from memctl.ops.statistics import Statistics
from tests.report import samples
from tests.report.conftest import Screen
from tests.support.chromium import Chromium
from tests.support.servers.pool import start

CSS = Path(__file__).parents[2] / "memctl" / "output" / "templates" / "report.css"
TIP = "return document.getElementById('tip').textContent"


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of an ordinary store."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    return samples.page(path, samples.messages(), context_limit=3000)


def test_report_page_screens(screen: Screen) -> None:
    page = samples.text(samples.messages(9, 2), context_limit=3000)
    screen("page.html", page[page.index("<header>") : page.index("<script>")])


def test_report_page_of_facts_screens(screen: Screen) -> None:
    title = {"title": "mem0:mem0.json", "what": "mem0 in Qdrant", "noun": "fact"}
    page = samples.text(samples.facts(), **title)
    screen("facts.html", page[page.index("<header>") : page.index("<script>")])


@pytest.mark.slow
def test_report_page_asks_for_no_other_file(ordinary: Path, chromium: Chromium) -> None:
    chromium.open(ordinary)
    assert chromium.requests() == [ordinary.as_uri()]
    assert chromium.console() == []


def test_report_page_shows_tips(ordinary: Path, chromium: Chromium) -> None:
    chromium.open(ordinary)
    chart = chromium.driver.find_element(By.CSS_SELECTOR, "#growth svg")
    mark = chart.find_elements(By.CSS_SELECTOR, ".mark")[10]
    ActionChains(chromium.driver).move_to_element(mark).perform()
    assert chromium.run(TIP).startswith("4 Nov: ")
    moves = {
        Keys.HOME: "25 Oct: ",
        Keys.ARROW_RIGHT: "26 Oct: ",
        Keys.END: "24 Nov: ",
        Keys.ARROW_LEFT: "23 Nov: ",
    }
    for key, shown in moves.items():
        chart.send_keys(key)
        assert chromium.run(TIP).startswith(shown)
    chart.send_keys(Keys.ESCAPE)
    assert chromium.run(TIP) == ""
    hours = chromium.driver.find_element(By.CSS_SELECTOR, "#hours svg")
    hours.send_keys(Keys.HOME, Keys.ARROW_DOWN)
    assert chromium.run(TIP).startswith("Tuesday 00:00: ")


def test_report_page_sorts_tables(ordinary: Path, chromium: Chromium) -> None:
    chromium.open(ordinary)
    chromium.run("document.querySelector('#growth details').open = true")
    table = chromium.driver.find_element(By.CSS_SELECTOR, "#growth table")
    cells = (
        "return [...arguments[0].querySelectorAll('tbody tr')].map(row => row.cells[0].innerText)"
    )
    head = table.find_elements(By.CSS_SELECTOR, "th")[5]  # sizes, which grow from day to day
    days = chromium.run(cells, table)
    for order, expected in (("descending", days[::-1]), ("ascending", days)):
        head.find_element(By.TAG_NAME, "button").click()
        assert head.get_attribute("aria-sort") == order
        assert chromium.run(cells, table) == expected


def test_report_page_copies_commands(ordinary: Path, chromium: Chromium) -> None:
    chromium.open(ordinary)
    chromium.driver.find_element(By.CSS_SELECTOR, ".finding summary").click()
    chromium.driver.find_element(By.CSS_SELECTOR, ".finding button").click()
    assert chromium.run("return String(getSelection())") == (
        "memctl doctor agents.db tool-call-without-result --repair"
    )


def test_report_page_themes_and_paper(ordinary: Path, chromium: Chromium) -> None:
    def colour() -> str:
        return str(chromium.run("return getComputedStyle(document.body).backgroundColor"))

    light, dark = "rgb(245, 247, 250)", "rgb(15, 19, 24)"
    chromium.open(ordinary)
    assert colour() == light
    chromium.show(dark=True)
    assert colour() == dark
    button = chromium.driver.find_element(By.ID, "theme")
    for shown in (light, dark, dark):  # light, dark, and as the system is
        button.click()
        assert colour() == shown
    card = "return getComputedStyle(document.querySelector('.card')).backgroundColor"
    chromium.show(dark=True, media="print")
    assert chromium.run(card) == "rgb(255, 255, 255)"
    assert not button.is_displayed()
    means = chromium.driver.find_element(By.CSS_SELECTOR, ".finding dl")
    assert means.size["height"] > 0


@pytest.mark.parametrize("width", [400, 1280])
def test_report_page_fits_the_window(ordinary: Path, chromium: Chromium, width: int) -> None:
    chromium.open(ordinary, width=width)
    chromium.run("for (const one of document.querySelectorAll('details')) one.open = true")
    assert chromium.sideways() == 0


def test_report_page_without_scripts(ordinary: Path, chromium: Chromium) -> None:
    chromium.open(ordinary, scripts=False)
    assert not chromium.driver.find_element(By.ID, "theme").is_displayed()
    assert chromium.run("return document.querySelectorAll('#growth title').length") == 31


def test_report_page_is_accessible(ordinary: Path, chromium: Chromium) -> None:
    chromium.open(ordinary)
    names = chromium.names("image")
    assert len(names) == 6
    assert names[0] == "Messages per day: 25 Oct to 24 Nov; most 90"
    assert all(names)
    chromium.run("for (const one of document.querySelectorAll('details')) one.open = true")
    assert start(chromium.violations) == []


def test_report_page_has_contrast() -> None:
    pairs = re.findall(r"--(\w+): light-dark\((#\w+), (#\w+)\)", CSS.read_text("utf-8"))
    for scheme in (1, 2):
        colours = {pair[0]: luminance(pair[scheme]) for pair in pairs}
        for name in ("ink", "soft", "link", "error", "warning", "notice", "good"):
            for ground in ("page", "card"):
                assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground, scheme)
        for name in ("user", "assistant", "other", "summary", "calls", "system"):
            for ground in ("card", "rest"):
                assert contrast(colours[name], colours[ground]) >= 3, (name, ground, scheme)


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(digit * 2 for digit in colour[1:])
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: float, other: float) -> float:
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


@pytest.mark.parametrize("facts", [False, True])
def test_report_page_shows_hostile_names(tmp_path: Path, chromium: Chromium, facts: bool) -> None:
    def page(name: str, names: list[str]) -> Path:
        found = samples.facts(names) if facts else samples.messages(31, 20, names)
        found.damaged = {MemoryKey(*names[place : place + 3]): names[place] for place in range(18)}
        runs: list[dict[str, Any]] = [
            {**samples.RUN, "run": one, "command": one, "outcome": one} for one in names
        ]
        told = dict.fromkeys(["store", "what", "counted", "selection", "no_findings"], names[1])
        return samples.page(
            *(tmp_path / name, found, runs),
            **{**told, "title": names[0], "words": tuple(names), "data": {"names": names[:-1]}},
        )

    hostile, tame = (
        page("hostile.html", samples.HOSTILE),
        page("tame.html", [f"n{n}" for n in range(20)]),
    )
    elements = "return [...document.querySelectorAll('*:not(span)')].map(one => one.localName)"
    chromium.open(tame)
    expected = chromium.run(elements)
    chromium.open(hostile)
    assert chromium.run(elements) == expected  # a long name may have a span with a tip
    assert chromium.run("return document.scripts.length") == 2
    assert chromium.run("return document.images.length") == 0
    assert chromium.requests() == [hostile.as_uri()]
    assert chromium.console() == []
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e\u200f]", hostile.read_text("utf-8"))
    data = "return JSON.parse(document.getElementById('data').textContent).names"
    assert chromium.run(data) == samples.HOSTILE[:-1]
    shown = chromium.run("return document.body.textContent")
    for name in ("<script>alert(1)</script>", "\\x1b[31mred\\x1b[0m", "abc\\u202etxt.exe"):
        assert name in shown
    assert "\N{WOMAN}\u200d\N{WOMAN}\u200d\N{GIRL}" in shown


def test_report_page_of_an_empty_store() -> None:
    page = samples.text(Statistics(findings=[]), runs=[])
    assert "This store has no messages." in page
    assert "<figure" not in page
    selected = samples.text(Statistics(), runs=[], selection="user ada")
    assert "No message is selected." in selected


def test_report_page_without_findings_says_why() -> None:
    statistics = samples.messages()
    statistics.findings = None
    page = samples.text(statistics, no_findings="the selection leaves out messages")
    assert 'id="findings"' not in page
    assert "Findings were left out: the selection leaves out messages." in page


def test_report_page_groups_long_times() -> None:
    assert "Messages per day" in samples.text(samples.messages(120))
    assert "Messages per week" in samples.text(samples.messages(121))
    assert "Messages per month" in samples.text(samples.messages(1200))


def test_report_page_compares_weeks_only_with_two_weeks_of_messages() -> None:
    assert "% against the 7 days before" in samples.text(samples.messages(14)).replace(
        "\xa0", " "
    ).replace("</strong>", "")
    assert "against the 7 days before" not in samples.text(samples.messages(13))


def test_report_page_of_1000_users_is_small() -> None:
    data = {"days": [day.row() for day in samples.days(1090)]}
    page = samples.text(samples.messages(1090, 1000), data=data)
    assert len(page.encode()) < 250_000


def test_report_page_of_many_marks_is_small() -> None:
    marks = {f"mark {number} {'x' * 100}": 1 for number in range(20_000)}
    damaged = [{"user": f"user {number}", "message": "cut"} for number in range(5_000)]
    data = {"totals": {"marks": marks, "roles": marks}, "damaged": damaged}
    page = samples.text(replace(samples.messages(), marks=marks, roles=marks), data=data)
    assert len(page.encode()) < 300_000


def test_report_page_does_not_count_tomorrow_as_a_day_of_the_last_week() -> None:
    tomorrow = samples.NOW.date() + timedelta(1)
    page = samples.text(replace(samples.messages(), days=[*samples.days(8, tomorrow)]))
    week = sum(day.user + day.assistant + day.other for day in [*samples.days(8, tomorrow)][:-1])
    assert f"<strong>{week:,}</strong> in the last 7 days" in page


def test_report_page_says_100_percent_only_of_all() -> None:
    ages = [1, 0, 0, 0, 999]
    page = samples.text(replace(samples.messages(), ages=ages, messages=1000))
    assert "A rule of 30 days would delete <strong>999 messages</strong> (over 99\u00a0%)" in page
