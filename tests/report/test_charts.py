"""The charts of ``memctl report``: numbers to SVG."""

from __future__ import annotations

import re
from typing import Any

import pytest

from memctl.output.report_page import templates
from tests.report.conftest import Screen

CHARTS: Any = templates().get_template("charts.svg").module
spread, ticks = templates().globals["spread"], templates().globals["ticks_of"]
BARS = """{% from "charts.svg" import bar, bars %}{% call bars(label) %}{% for value in values %}
{{ bar("a name", "{:,}".format(value), value / most, "user") -}}
{% endfor %}{% endcall %}"""
VALUES = {
    "none": [],
    "one": [7],
    "31": [place * place % 97 for place in range(31)],
    "120": [place * 37 % 120 for place in range(120)],
    "equal": [5] * 12,
    "huge": [3, 1, 10**9, 2, 0, 4],
}


def written(value: float) -> str:
    return f"{value:,.0f}"


def columns(values: list[int], *, edges: bool = False) -> str:
    labels = [f"n{place}" for place in range(len(values) + edges)]
    return str(
        CHARTS.columns(
            "columns",
            [("user", values), ("assistant", [value // 2 for value in values])],
            [f"{value:,}" for value in values],
            spread(labels, 12),
            written,
            edges=edges,
            line=[None, *values[1:]] if values else [],
            limit=(0.7, "limit") if edges else None,
        )
    )


def area(values: list[int]) -> str:
    labels = spread([f"n{place}" for place in range(len(values))], 6)
    return str(CHARTS.area("area", values, [f"{value:,}" for value in values], labels, written))


def bars(values: list[int]) -> str:
    most = max(values, default=0) or 1
    return templates().from_string(BARS).render(label="bars", values=values[:31], most=most)


def heat_map(values: list[int]) -> str:
    rows = [("Mon", [*values, *[0] * 24][:24]), ("Tue", [0] * 24)]
    return str(CHARTS.heat_map("heat map", rows, [f"{n:,}" for _, row in rows for n in row]))


def stack(values: list[int]) -> str:
    return str(CHARTS.stack("stack", [("user", value, f"{value:,}") for value in values[:6]]))


FORMS = {
    "columns": columns,
    "histogram": lambda values: columns(values[:12], edges=True),
    "area": area,
    "bars": bars,
    "heat-map": heat_map,
    "stack": stack,
}


@pytest.mark.parametrize("form", FORMS)
def test_charts_screens(form: str, screen: Screen) -> None:
    parts = [f"<h2>{name}</h2>\n{FORMS[form](values)}" for name, values in VALUES.items()]
    screen(f"{form}.html", "\n".join(parts))


@pytest.mark.parametrize("form", ["columns", "area"])
def test_charts_of_a_thousand_values(form: str) -> None:
    drawn = FORMS[form](list(range(1000)))
    assert drawn.count("<title>") == 1000
    assert drawn.count('<text class="x') <= 13
    assert len(drawn) < 400_000


@pytest.mark.parametrize("form", FORMS)
def test_charts_have_no_style_of_their_own(form: str) -> None:
    drawn = FORMS[form](VALUES["31"])
    assert not re.search(r"\s(style|fill|stroke|on\w+)=", drawn)
    assert drawn.count("viewBox") == drawn.count("preserveAspectRatio")


@pytest.mark.parametrize(
    ("highest", "last"), [(0, 1), (1, 1), (3, 3), (99, 100), (2653, 3000), (10**9, 10**9)]
)
def test_charts_ticks(highest: int, last: int) -> None:
    found = ticks([("", [highest])])
    assert found[0] == 0
    assert found[-1] == last
    assert len(found) <= 5


def test_charts_escape_names() -> None:
    name = "<b>\x1b"
    drawn = str(CHARTS.columns(name, [("user", [1])], [name], [name], lambda _: name))
    drawn += str(CHARTS.area(name, [1], [name], [name], lambda _: name))
    drawn += str(CHARTS.heat_map(name, [(name, [1])], [name]))
    drawn += str(CHARTS.stack(name, [("user", 1, name)]))
    drawn += templates().from_string(BARS).render(label=name, values=[])
    assert "<b>" not in drawn
    assert "\x1b" not in drawn
    assert "&lt;b&gt;\\x1b" in drawn
