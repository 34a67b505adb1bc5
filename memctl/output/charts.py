"""Charts as SVG: pure functions from numbers to text.

Positions are percents and a chart has no ``viewBox``, so its text keeps its size on every screen.
Only lines are scaled: they lie in an ``svg`` of their own.  Colours are classes of the page's
style.  A chart is one image with a label; what a screen reader would read of each of its marks is
in the table next to it.  The tip of a mark is its ``title``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from memctl.text import html

MOST_TICKS = 4
_LEAST = 0.6
"""The least height of a value above zero, in percent."""
_WIDEST = 8
"""The greatest width of a column of a chart without edges, in percent."""
_THIN = 2
"""The height up to which no gap of a pixel fits around a value, in percent."""
_DENSE = 60
"""The number of columns from which no gap of a pixel fits between them."""


@dataclass(frozen=True, slots=True)
class Series:
    """The values of one colour: ``css`` is its class."""

    css: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Axis:
    """The labels below a chart, one for each mark; an empty label is not drawn.

    With ``edges``, a label stands at the left edge of its mark, and one more label at the end.
    """

    labels: Sequence[str]
    edges: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in a list: ``name`` and ``value`` are HTML, ``share`` is between 0 and 1."""

    name: str
    value: str
    share: float


def ticks(highest: float) -> list[float]:
    """Return the ticks of an axis from zero: multiples of 1, 2 or 5 times a power of ten.

    The last one is not below ``highest``; there are at most four above zero.
    """
    if highest <= 0:
        return [0, 1]
    power = 10.0 ** math.floor(math.log10(highest / MOST_TICKS))
    step = next(
        unit * power for unit in (1, 2, 5, 10) if math.ceil(highest / (unit * power)) <= MOST_TICKS
    )
    step = max(step, 1)
    return [step * number for number in range(math.ceil(highest / step) + 1)]


def spread(labels: Sequence[str], most: int) -> list[str]:
    """Return the labels with empty ones between, so that at most ``most`` are left."""
    step = math.ceil(len(labels) / most) or 1
    return [label if not place % step else "" for place, label in enumerate(labels)]


def columns(
    label: str,
    series: Sequence[Series],
    tips: Sequence[str],
    axis: Axis,
    written: Callable[[float], str],
    *,
    line: Sequence[float | None] = (),
    limit: tuple[float, str] | None = None,
) -> str:
    """Draw a column for each tip: the values of all series on top of each other.

    ``written`` writes a value of the scale.  ``line`` has a value for each column; None before
    its first value.  ``limit`` is a vertical line: its place between 0 and 1, and its text.
    """
    number = len(tips)
    sums = [sum(values) for values in zip(*(one.values for one in series), strict=True)]
    scale = ticks(max(sums, default=0))
    width = 100 / max(number, 1)
    gap = min(width * (0.1 if number > _DENSE else 0.07), 0.8)
    if not axis.edges:
        gap = max(gap, (width - _WIDEST) / 2)
    parts = []
    for place, tip in enumerate(tips):
        base = 100.0
        parts.append(_mark(tip, place * width + gap, width - 2 * gap))
        for one in series:
            if value := one.values[place]:
                height = max(value / scale[-1] * 100, _LEAST)
                base -= height
                css = one.css if height > _THIN else f"{one.css} thin"
                y, tall = _number(base), _number(height)
                parts.append(f'<rect class="{css}" y="{y}%" height="{tall}%"/>')
        parts.append("</svg>\n")
    points = [
        f"{_number(place + 0.5)},{_number(100 - value / scale[-1] * 100)}"
        for place, value in enumerate(line)
        if value is not None
    ]
    if len(points) > 1:
        parts.append(_lines(number, f'<polyline class="mean" points="{" ".join(points)}"/>'))
    if limit is not None:
        at, text = f"{_number(limit[0] * 100)}%", html.text(limit[1])
        parts.append(f'<line class="limit" x1="{at}" x2="{at}" y1="-16" y2="100%"/>')
        turned = ' class="limit turned" dx="-4"' if limit[0] > 0.6 else ' class="limit" dx="4"'
        parts.append(f'<text x="{at}" y="-7"{turned}>{text}</text>')
    css = "plot dense" if number > _DENSE else "plot"
    return _chart(css, label, [_scale(scale, written), *parts, _below(axis)])


def area(
    label: str,
    values: Sequence[float],
    tips: Sequence[str],
    axis: Axis,
    written: Callable[[float], str],
) -> str:
    """Draw the area below a line through the values."""
    scale = ticks(max(values, default=0))
    steps = max(len(values) - 1, 1)
    heights = [100 - value / scale[-1] * 100 for value in values]
    if len(heights) == 1:
        heights *= 2
    points = " ".join(f"{place},{_number(height)}" for place, height in enumerate(heights))
    parts = [_scale(scale, written)]
    if points:
        drawn = f'<polygon class="under" points="0,100 {points} {steps},100"/>'
        parts.append(_lines(steps, f'{drawn}<polyline class="over" points="{points}"/>'))
    width = 100 / steps
    for place, (tip, height) in enumerate(zip(tips, heights, strict=False)):
        mark = _mark(tip, (place - 0.5) * width, width)
        parts.append(f'{mark}<circle cx="50%" cy="{_number(height)}%" r="4"/></svg>\n')
    return _chart("plot", label, [*parts, _below(axis, apart=width)])


def heat_map(label: str, rows: Sequence[tuple[str, Sequence[float]]], tips: Sequence[str]) -> str:
    """Draw a cell for each value, the darker the larger; ``rows`` are named from 0 to 23 hours."""
    highest = max((value for _, values in rows for value in values), default=0) or 1
    parts = []
    told = iter(tips)
    height = 100 / max(len(rows), 1)
    for place, (name, values) in enumerate(rows):
        top, width = place * height, 100 / max(len(values), 1)
        parts.append(
            f'<text class="y" x="-8" y="{_number(top + height / 2)}%">{html.text(name)}</text>'
        )
        for hour, value in enumerate(values):
            shade = f' fill-opacity="{_number(0.12 + 0.88 * value / highest)}"' if value else ""
            css = "warm" if value else "cold"
            parts.append(_tipped(css, next(told), hour * width, top, width, height, shade))
    hours = [f"{hour:02}:00" if not hour % 3 else "" for hour in range(24)]
    parts.append(_below(Axis([*hours, "24:00"], edges=True)))
    return _chart("plot heat", label, parts, "24")


def stack(label: str, parts: Sequence[tuple[str, float, str]]) -> str:
    """Draw one bar of the classes, values and tips of its parts."""
    total = sum(value for _, value, _ in parts) or 1
    drawn, left = [], 0.0
    for css, value, tip in parts:
        width = value / total * 100
        drawn.append(_tipped(css, tip, left, 0, width, 100))
        left += width
    return _chart("stack", label, drawn)


def bars(label: str, rows: Iterable[Bar], css: str) -> str:
    """Draw a list with a bar in each row; all bars have one scale."""
    items = [
        f'<li><span class="name">{row.name}</span><svg aria-hidden="true" class="bar">'
        f"{_rect('rest', 0, 0, 100, 100)}{_filled(css, row.share)}"
        f'</svg><span class="value">{row.value}</span></li>\n'
        for row in rows
    ]
    return f'<ol class="bars" aria-label="{html.attribute(label)}">\n{"".join(items)}</ol>\n'


def _filled(css: str, share: float) -> str:
    return _rect(css, 0, 0, max(share * 100, _LEAST), 100) if share else ""


def _chart(css: str, label: str, parts: Iterable[str], row: str = "") -> str:
    """Return an image with one label and one stop of the Tab key.

    Its marks are in rows of ``row`` marks each, if that is given.
    """
    rows = f' data-row="{row}"' if row else ""
    return (
        f'<svg class="{css}" role="img" tabindex="0" aria-label="{html.attribute(label)}"{rows}>'
        f'<g aria-hidden="true">\n{"".join(parts)}</g></svg>\n'
    )


def _scale(scale: Sequence[float], written: Callable[[float], str]) -> str:
    lines = []
    for tick in scale:
        y = f"{_number(100 - tick / scale[-1] * 100)}%"
        css = "grid" if tick else "zero"
        lines.append(f'<line class="{css}" x1="0" x2="100%" y1="{y}" y2="{y}"/>')
        lines.append(f'<text class="y" x="-8" y="{y}">{html.text(written(tick))}</text>\n')
    return "".join(lines)


def _below(axis: Axis, apart: float | None = None) -> str:
    """Return the labels below a chart; every second is left out on narrow screens.

    ``apart`` is the distance of two marks in percent, if the first one is at the left end.
    """
    marks = len(axis.labels) - axis.edges
    first = 0.0 if axis.edges or apart is not None else 0.5
    step = 100 / max(marks, 1) if apart is None else apart
    last = 100 / step if step else 0
    shown = [(place, label) for place, label in enumerate(axis.labels) if label]
    return "".join(
        f'<text class="x{" minor" * (number % 2)}{" last" * (place + first == last)}" '
        f'x="{_number((place + first) * step)}%" '
        f'y="100%" dy="18">{html.text(label)}</text>'
        for number, (place, label) in enumerate(shown)
    )


def _mark(tip: str, left: float, width: float) -> str:
    """Return the begin of a mark with its tip, and the place in which a pointer finds it.

    The style makes what is in the mark as wide as the mark.
    """
    return (
        f'<svg class="mark" x="{_number(left)}%" width="{_number(width)}%">'
        f'<title>{html.text(tip)}</title><rect class="hit"/>'
    )


def _lines(width: int, drawn: str) -> str:
    """Return lines in a coordinate system of their own, ``width`` by 100."""
    return (
        f'<svg class="lines" viewBox="0 0 {width} 100" preserveAspectRatio="none" width="100%" '
        f'height="100%">{drawn}</svg>\n'
    )


def _tipped(
    css: str, tip: str, left: float, top: float, width: float, height: float, more: str = ""
) -> str:
    """Return a rectangle that is a mark with a tip."""
    drawn = _rect(f"mark {css}", left, top, width, height).removesuffix("/>")
    return f"{drawn}{more}><title>{html.text(tip)}</title></rect>\n"


def _rect(css: str, left: float, top: float, width: float, height: float) -> str:
    return (
        f'<rect class="{css}" x="{_number(left)}%" y="{_number(top)}%" width="{_number(width)}%" '
        f'height="{_number(height)}%"/>'
    )


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
