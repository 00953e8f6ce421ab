"""Plots: what a comparison of methods found, as pictures.

In: plain numbers. Out: a `.png` or `.svg` file, written whole or not at all.
Guarantees: colours that colour-blind readers tell apart, a marker for each method so that print needs no colour, and no
state shared with the caller's own matplotlib.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, groupby, product
from pathlib import Path
from typing import Any

from layermerge.errors import PlotError, require_package
from layermerge.files import write_files
from layermerge.runs.records import CONTROL, Report

# Okabe and Ito, without the yellow that white paper swallows.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "X")
_LINES = ("-", "--", ":", "-.")
_CONTROL = "#555555"
_STYLE = {
    "font.size": 10,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "svg.hashsalt": "layermerge",  # the same picture is the same file
}


@dataclass(frozen=True)
class MethodPoint:
    """What one method reached at one budget; `low` and `high` bound the score where an interval is known."""

    method: str
    budget: str
    latency_ms: float
    original_ms: float
    score: float
    low: float | None = None
    high: float | None = None
    control: bool = False
    """Whether it is the untouched network, fine-tuned or not: what the methods are compared with."""

    @staticmethod
    def of(report: Report) -> MethodPoint:
        score, control = report.score, report.method == CONTROL
        return MethodPoint(
            "original, fine-tuned" if control else report.method,
            report.budget,
            report.measured_ms,
            report.original_ms,
            score.scale * score.value,
            None if score.low is None else score.scale * score.low,
            None if score.high is None else score.scale * score.high,
            control,
        )


@dataclass(frozen=True)
class RecoveryCurve:
    """(epoch, score) pairs of one method at one budget."""

    method: str
    budget: str
    points: tuple[tuple[float, float], ...]

    @property
    def name(self) -> str:
        return f"{self.method} {self.budget}"


def plot_accuracy(points: Sequence[MethodPoint], path: str | Path, *, score: str = "accuracy (%)") -> Path:
    """Draws the score against the measured latency, a line for each method, the speed-up on the top axis.

    Controls have a marker of their own and a dashed line across.
    """
    if not points:
        raise PlotError("there is nothing to draw: no points were given")
    wrong = next((point for point in points if not (point.latency_ms > 0 and math.isfinite(point.score))), None)
    if wrong:
        raise PlotError(
            f"'{wrong.method}' at {wrong.budget} has no latency above zero or no finite score; leave it out"
        )
    with picture(path) as axes:
        colours = iter(styles())
        for method, group in _by_method(point for point in points if not point.control):
            _draw_method(axes, method, group, *next(colours))
        for place, (method, group) in enumerate(_by_method(point for point in points if point.control)):
            _draw_control(axes, method, group, place)
        _speed_up_axis(axes, points[0].original_ms)
        axes.set_xlabel("measured latency (ms)")
        axes.set_ylabel(score)
        _legend(axes)
    return Path(path)


def plot_recovery(curves: Sequence[RecoveryCurve], path: str | Path, *, score: str = "accuracy (%)") -> Path:
    """Draws how the score comes back while the networks are fine-tuned.

    Curves of one method share colour and marker, and differ by their lines.
    """
    if not curves or not all(curve.points for curve in curves):
        empty = next((f"curve '{curve.name}' has no point" for curve in curves if not curve.points), "no curves given")
        raise PlotError(f"there is nothing to draw: {empty}; leave it out")
    with picture(path) as axes:
        for curve, (colour, marker, line) in zip(curves, _looks([curve.method for curve in curves]), strict=True):
            epochs, scores = zip(*curve.points, strict=True)
            # The last point is what counts; a marker at each would hide the curves.
            axes.plot(
                epochs,
                scores,
                color=colour,
                marker=marker,
                markevery=[-1],
                markersize=7,
                markeredgecolor="white",
                linestyle=line,
                linewidth=1.6,
                label=curve.name,
            )
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("epoch of fine-tuning")
        axes.set_ylabel(score)
        _legend(axes)
    return Path(path)


@contextmanager
def picture(path: str | Path, *, width: float = 8.0, height: float = 4.6, panels: int = 1) -> Iterator[Any]:
    """Axes to draw on (a list, where there are several panels); the file is written when the block ends without an error."""
    target = Path(path)
    if target.suffix not in (".png", ".svg"):
        raise PlotError(f"cannot draw '{target.name}'; give a name that ends in .png or .svg")
    matplotlib = _matplotlib()
    with matplotlib.rc_context(_STYLE):
        figure = matplotlib.figure.Figure(figsize=(width, height), layout="constrained")
        matplotlib.backends.backend_agg.FigureCanvasAgg(figure)
        axes = [figure.add_subplot(1, panels, place + 1) for place in range(panels)]
        yield axes if panels > 1 else axes[0]
        undated = {"Date": None} if target.suffix == ".svg" else {}
        kind = target.suffix[1:]
        write_files({target: lambda file: figure.savefig(file, format=kind, dpi=160, metadata=undated)})


def _matplotlib() -> Any:
    matplotlib = require_package("matplotlib", "a picture", "layermerge[plots]")
    for name in ("matplotlib.figure", "matplotlib.backends.backend_agg"):
        importlib.import_module(name)
    return matplotlib


def styles() -> Iterator[tuple[str, str, str]]:
    """Colour, marker and line of one method after another; colours come again with another line."""
    looks = product(_LINES, zip(_COLOURS, _MARKERS, strict=True))
    return cycle((colour, marker, line) for line, (colour, marker) in looks)


def _looks(methods: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    families = dict(zip(dict.fromkeys(methods), styles(), strict=False))
    seen: Counter[str] = Counter()
    for method in methods:
        colour, marker, line = families[method]
        yield colour, marker, _LINES[(_LINES.index(line) + seen[method]) % len(_LINES)]
        seen[method] += 1


def _legend(axes: Any) -> None:
    """Beside the plot, where it covers nothing; in more columns where one would be taller than the plot."""
    rows = 16
    axes.legend(
        loc="center left", bbox_to_anchor=(1.01, 0.5), ncols=-(-len(axes.get_legend_handles_labels()[1]) // rows)
    )


def _by_method(points: Iterable[MethodPoint]) -> list[tuple[str, list[MethodPoint]]]:
    """Methods in the order of their first point, the points of each by latency."""
    given = list(points)
    order = list(dict.fromkeys(point.method for point in given))
    ordered = sorted(given, key=lambda point: (order.index(point.method), point.latency_ms))
    return [(method, list(group)) for method, group in groupby(ordered, key=lambda point: point.method)]


def _draw_method(axes: Any, method: str, group: list[MethodPoint], colour: str, marker: str, line: str) -> None:
    axes.errorbar(
        [point.latency_ms for point in group],
        [point.score for point in group],
        yerr=_error_bars(group),
        color=colour,
        marker=marker,
        markersize=6.5,
        markeredgecolor="white",
        markeredgewidth=0.7,
        linestyle=line,
        linewidth=1.6,
        elinewidth=1.0,
        capsize=2.5,
        label=method,
    )


def _draw_control(axes: Any, method: str, group: list[MethodPoint], place: int) -> None:
    marker, line = (("*", "--"), ("h", ":"))[place % 2]
    for point in group:
        axes.axhline(point.score, color=_CONTROL, linestyle=line, linewidth=1.0, zorder=1)
        if point.low is not None and point.high is not None:
            axes.axhspan(point.low, point.high, color=_CONTROL, alpha=0.07, linewidth=0, zorder=0)
    latencies, scores = [point.latency_ms for point in group], [point.score for point in group]
    axes.plot(latencies, scores, color=_CONTROL, marker=marker, markersize=9, linestyle=line, linewidth=1, label=method)


def _error_bars(group: list[MethodPoint]) -> list[list[float]]:
    """How far the interval reaches below and above; nothing where none is known."""
    below = [0.0 if point.low is None else max(point.score - point.low, 0.0) for point in group]
    above = [0.0 if point.high is None else max(point.high - point.score, 0.0) for point in group]
    return [below, above]


def _speed_up_axis(axes: Any, original_ms: float) -> None:
    """The same latencies as speed-ups over the original, on top, at round numbers that lie in view."""
    left, right = axes.get_xlim()
    left = max(left, 1e-9)
    axes.set_xlim(left, right)
    steps = [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 50.0]
    shown: list[float] = []
    for step in steps:  # none so near the one before that their labels would touch
        place = original_ms / step
        if left <= place <= right and (not shown or original_ms / shown[-1] - place > 0.06 * (right - left)):
            shown.append(step)
    top = axes.secondary_xaxis("top")
    top.set_xticks([original_ms / step for step in shown], [f"{step:g}x" for step in shown])
    top.set_xlabel(f"speed-up over the original ({original_ms:.3g} ms)")
    top.spines["top"].set_visible(False)
    top.tick_params(colors=_CONTROL)
    top.xaxis.label.set_color(_CONTROL)
