"""Chart: points and lines over two axes as one SVG that fits any width by itself.

In: a `Chart`, plain numbers. Out: a figure with its legend. Across, places are shares of the width; down, they are pixels; so
text and marks keep their size on a phone and on paper, and no script has to draw anything. The numbers behind the places are
in `data-` attributes, for the line that follows the slider.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from layermerge.reporting.html.markup import Markup, el, join, percent

_LEFT, _RIGHT, _HEIGHT = 11.0, 97.0, 330
_SPEEDS = (1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.7, 2, 2.5, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50)
_SHAPES = ("circle", "square", "up", "diamond", "down", "cross")
_USUAL_WIDTH = 700.0


@dataclass(frozen=True)
class Mark:
    """A point; `low` and `high` bound it, `tip` is said of it, `text` stands next to it."""

    x: float
    y: float
    tip: str = ""
    low: float | None = None
    high: float | None = None
    text: str = ""


@dataclass(frozen=True)
class Series:
    """Marks of one look, joined where `line` says so; `small` ones are of lesser weight, of `last` only the last is marked."""

    name: str
    look: str
    marks: tuple[Mark, ...]
    line: bool = False
    dash: str | None = None
    small: bool = False
    last: bool = False


@dataclass(frozen=True)
class Band:
    """What is estimated: (x, value, low, high), x ascending."""

    name: str
    points: tuple[tuple[float, float, float, float], ...]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """`across` are level lines with their names; `speeds` is the latency of speed-up 1; `live` has the slider's line."""

    label: str
    x: str
    y: str
    series: tuple[Series, ...]
    band: Band | None = None
    across: tuple[tuple[float, str], ...] = ()
    speeds: float | None = None
    diagonal: bool = False
    live: bool = False
    file: str = "chart"


def look_at(place: int) -> str:
    """The class that colours the series of this place."""
    return f"s{place % 6}"


def chart(given: Chart) -> Markup:
    """The figure; its file name is for whoever saves it."""
    plot = _Plot(given)
    data = {
        f"data_{name}": value
        for name, value in {"x0": plot.xs[0], "x1": plot.xs[1], "left": _LEFT, "right": _RIGHT, "y0": plot.ys[0],
                            "y1": plot.ys[1], "top": plot.top, "bottom": plot.bottom}.items()
    }  # fmt: skip
    picture = el(
        "svg", plot.axes(), plot.levels(), plot.band(), [plot.series(series) for series in given.series],
        _live(plot) if given.live else None,
        width="100%", height=_HEIGHT, role="img", aria_label=given.label, **(data if given.live else {}),
    )  # fmt: skip
    return el("figure", picture, _legend(given), class_="chart", data_file=given.file)


class _Plot:
    """Where the numbers of a chart lie."""

    def __init__(self, given: Chart) -> None:
        self.given = given
        marks = [mark for series in given.series for mark in series.marks]
        band = given.band.points if given.band else ()
        xs = [mark.x for mark in marks] + [point[0] for point in band] + ([given.speeds] if given.speeds else [])
        bounds = [bound for mark in marks for bound in (mark.low, mark.high) if bound is not None]
        ys = (
            [mark.y for mark in marks]
            + bounds
            + [end for point in band for end in point[1:]]
            + [y for y, _ in given.across]
        )
        self.xs, self.ys = _domain(xs, 0.05), _domain(ys, 0.09)
        if given.diagonal:
            self.xs = self.ys = (min(self.xs[0], self.ys[0]), max(self.xs[1], self.ys[1]))
        self.top, self.bottom = (58.0 if given.speeds else 34.0), _HEIGHT - 48.0
        self._drawn: list[tuple[float, float]] = []

    def px(self, x: float) -> float:
        return _LEFT + (x - self.xs[0]) / (self.xs[1] - self.xs[0]) * (_RIGHT - _LEFT)

    def py(self, y: float) -> float:
        return round(self.bottom - (y - self.ys[0]) / (self.ys[1] - self.ys[0]) * (self.bottom - self.top), 2)

    # -- axes

    def axes(self) -> Markup:
        parts = []
        for at, text in ticks(*self.ys, 6):
            parts.append(_line("grid", _LEFT, self.py(at), _RIGHT, self.py(at)))
            parts.append(_label(_LEFT - 1, self.py(at) + 4, "end", text))
        for at, text in ticks(*self.xs, 6):
            parts.append(_line("axis", self.px(at), self.bottom, self.px(at), self.bottom + 5))
            parts.append(_label(self.px(at), self.bottom + 19, "middle", text))
        parts.append(_line("axis", _LEFT, self.bottom, _RIGHT, self.bottom))
        parts.append(_label(_RIGHT, self.bottom + 40, "end", self.given.x, soft=False))
        parts.append(_label(0, 14, "start", self.given.y, soft=False))
        return join([*parts, *self._speeds()])

    def _speeds(self) -> Iterable[Markup]:
        if not self.given.speeds:
            return
        yield _label(_RIGHT, 14, "end", "speed-up")
        last = math.inf
        for speed in _SPEEDS:
            at = self.px(self.given.speeds / speed)
            if _LEFT <= at <= _RIGHT and last - at >= 11:  # labels do not touch on a phone
                last = at
                yield _line("axis", at, self.top - 5, at, self.top)
                yield _label(at, self.top - 9, "middle", f"{speed:g}×")

    def levels(self) -> Markup:
        lines = [
            _line(f"level l{place}", _LEFT, self.py(y), _RIGHT, self.py(y))
            for place, (y, _) in enumerate(self.given.across)
        ]
        diagonal = [_line("level l0", _LEFT, self.bottom, _RIGHT, self.top)] if self.given.diagonal else []
        return join(lines + diagonal)

    # -- what is drawn

    def band(self) -> Markup:
        """An area between two dashed edges, with its middle."""
        if not self.given.band or len(self.given.band.points) < 2:
            return Markup("")
        points = self.given.band.points
        low, middle, high = ([(self.px(point[0]), self.py(point[end])) for point in points] for end in (2, 1, 3))
        edges = [el("path", d=_path(edge), class_="edge") for edge in (low, high)]
        area = el("path", d=_path([*low, *reversed(high)]) + "z", class_="area")
        return el("g", self._stretched([area, *edges, el("path", d=_path(middle), class_="middle")]), class_="band")

    def _stretched(self, content: Sequence[Markup]) -> Markup:
        """Paths know no shares of the width: 100 units of a picture that is pulled to it, whose lines keep their width."""
        return el(
            "svg",
            content,
            x="0",
            y="0",
            width="100%",
            height=_HEIGHT,
            viewBox=f"0 0 100 {_HEIGHT}",
            preserveAspectRatio="none",
        )

    def series(self, given: Series) -> Markup:
        drawn = [(self.px(mark.x), self.py(mark.y)) for mark in given.marks]
        line = el("path", d=_path(drawn), class_="line", stroke_dasharray=given.dash)
        parts = [self._stretched([line])] if given.line and len(drawn) > 1 else []
        for mark in given.marks[-1:] if given.last else given.marks:
            parts.append(self._mark(given, mark))
        return el("g", parts, class_=f"series {given.look}")

    def _mark(self, series: Series, mark: Mark) -> Markup:
        x, y = self.px(mark.x), self.py(mark.y)
        # Marks that would hide another are rings around it.
        pixels = (x * _USUAL_WIDTH / 100, y)
        hidden = 0 if series.small else sum(math.dist(pixels, other) < 6 for other in self._drawn)
        self._drawn += [] if series.small else [pixels]
        bars = []
        if mark.low is not None and mark.high is not None:
            low, high = self.py(mark.low) - y, self.py(mark.high) - y
            bars = [el("path", d=f"M0,{low:.2f}V{high:.2f}M-4,{low:.2f}h8M-4,{high:.2f}h8", class_="bar")]
        size = 2.6 if series.small else 5.2 + 3.5 * hidden
        tip = el("title", mark.tip) if mark.tip else None
        shape = el("path", tip, d=shape_path(series.look, size), class_="mark ring" if hidden else "mark")
        text = el("text", mark.text, x=9, y=-9 - 12 * hidden) if mark.text else None
        return el("svg", bars, shape, text, x=percent(x), y=y, class_="at")


def shape_path(look: str, size: float) -> str:
    """The outline of a mark around (0, 0)."""
    shape = _SHAPES[int(look[1:]) % len(_SHAPES)] if look[1:].isdigit() else "cross"
    a, b = f"{size:.2f}", f"{1.25 * size:.2f}"
    return {
        "circle": f"M-{a},0a{a},{a} 0 1 0 {2 * size:.2f},0a{a},{a} 0 1 0 -{2 * size:.2f},0z",
        "square": f"M-{a},-{a}h{2 * size:.2f}v{2 * size:.2f}h-{2 * size:.2f}z",
        "up": f"M0,-{b}L{b},{a}H-{b}z",
        "down": f"M0,{b}L{b},-{a}H-{b}z",
        "diamond": f"M0,-{b}L{b},0L0,{b}L-{b},0z",
        "cross": f"M-{a},-{a}L{a},{a}M-{a},{a}L{a},-{a}",
    }[shape]


def ticks(low: float, high: float, wanted: int) -> list[tuple[float, str]]:
    """Round numbers within a range, and how they are written.

    >>> ticks(0.0, 1.0, 4)
    [(0.0, '0.00'), (0.25, '0.25'), (0.5, '0.50'), (0.75, '0.75'), (1.0, '1.00')]
    """
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    factor = next(each for each in (1, 2, 2.5, 5, 10) if each * power >= raw * 0.999)
    step = factor * power
    places = min(8, max(0, -math.floor(math.log10(step) + 1e-9) + (1 if factor == 2.5 else 0)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-6)
    return [(number * step, f"{number * step:.{places}f}") for number in range(first, last + 1)]


def _domain(values: Sequence[float], pad: float) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    room = ((high - low) or abs(high) or 1.0) * pad
    return low - room, high + room


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "".join(f"{'L' if place else 'M'}{x:.3f},{y:.2f}" for place, (x, y) in enumerate(points))


def _line(name: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    return el("line", class_=name, x1=percent(x1), y1=y1, x2=percent(x2), y2=y2)


def _label(x: float, y: float, anchor: str, text: str, *, soft: bool = True) -> Markup:
    return el("text", text, x=percent(x), y=y, text_anchor=anchor, class_="soft" if soft else None)


def _live(plot: _Plot) -> Markup:
    """The line of the chosen budget, and what is expected there; a script moves them."""
    ends = {"x1": "0%", "x2": "0%", "y1": plot.top, "y2": plot.bottom}
    ring = el("svg", el("circle", r=8, class_="live-ring"), class_="at", data_part="live-ring", x="0%", y="0")
    return el("g", el("line", class_="budget", data_part="live-line", **ends), ring, hidden=True, data_part="live")


def _legend(given: Chart) -> Markup:
    def row(name: str, look: str, *parts: Markup | None) -> Markup:
        sample = el("svg", parts, viewBox="0 0 30 18", width=30, height=18, aria_hidden="true", class_=look)
        return el("li", sample, el("span", name))

    rows = []
    for series in given.series:
        line = el("path", d="M0,9H30", class_="line", stroke_dasharray=series.dash) if series.line else None
        mark = el("g", el("path", d=shape_path(series.look, 4.6), class_="mark"), transform="translate(15 9)")
        if not series.small:
            rows.append(row(series.name, f"series {series.look}", line, mark))
    if given.band:
        area = el("rect", x=0, y=3, width=30, height=12, class_="area")
        edges = el("path", d="M0,3H30M0,15H30", class_="edge")
        rows.append(row(given.band.name, "band", area, edges, el("path", d="M0,9H30", class_="middle")))
    for place, (_, name) in enumerate(given.across):
        rows.append(row(name, "", el("path", d="M0,9H30", class_=f"level l{place}")))
    if given.live:
        rows.append(row("the budget chosen above", "", el("path", d="M15,0V18", class_="budget")))
    return el("ul", rows, class_="legend", aria_label="Legend")
