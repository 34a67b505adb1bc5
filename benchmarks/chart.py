"""A chart of lines over two logarithmic axes, as SVG that reads well on light and on dark pages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 64, 150, 24, 56
COLOURS = ("#0b7a75", "#c2410c", "#6d28d9", "#64748b")
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#64748b}"
    ".grid{stroke:#94a3b8;stroke-opacity:.3}"
    ".line{fill:none;stroke-width:2.5;stroke-linejoin:round}"
    ".small{font-size:11px}"
)


@dataclass
class Series:
    """A line: its name and its points, both coordinates above zero."""

    name: str
    points: list[tuple[float, float]]


class _Axis:
    """From values to pixels, by powers of ten."""

    def __init__(self, values: list[float], start: float, end: float) -> None:
        self.low = math.floor(math.log10(min(values)) + 1e-9)
        self.high = max(math.ceil(math.log10(max(values)) - 1e-9), self.low + 1)
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self._start + share * (self._end - self._start)

    def powers(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def draw(series: list[Series], across: str, up: str, note: str) -> str:
    """The chart; ``note`` says where the figures were measured."""
    xs = _Axis([x for one in series for x, _ in one.points], LEFT, WIDTH - RIGHT)
    ys = _Axis([y for one in series for _, y in one.points], HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="{escape(up)} over {escape(across)}">',
        f"<style>{_STYLE}</style>",
        *_grid(xs, ys),
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 20}" text-anchor="middle">'
        f"{escape(across)}</text>",
        f'<text x="{LEFT}" y="{TOP - 8}" text-anchor="end">{escape(up)}</text>',
        f'<text class="small" x="{LEFT}" y="{HEIGHT - 4}">{escape(note)}</text>',
    ]
    for one, colour in zip(series, COLOURS, strict=False):
        parts += _line(one, colour, xs, ys)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _grid(xs: _Axis, ys: _Axis) -> list[str]:
    parts = []
    for value in xs.powers():
        x = xs.at(value)
        parts.append(f'<path class="grid" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{value:,g}</text>'
        )
    for value in ys.powers():
        y = ys.at(value)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:,g}</text>')
    return parts


def _line(one: Series, colour: str, xs: _Axis, ys: _Axis) -> list[str]:
    points = [(xs.at(x), ys.at(y)) for x, y in one.points]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    x, y = points[-1]
    seconds = one.points[-1][1]
    label = f"{escape(one.name)}  {seconds:.3g} s"
    return [
        f'<path class="line" stroke="{colour}" d="M{path}"/>',
        *dots,
        f'<text x="{x + 10:.1f}" y="{y + 4:.1f}" style="fill:{colour}">{label}</text>',
    ]
