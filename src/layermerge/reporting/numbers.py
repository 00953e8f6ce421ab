"""Numbers as people read them: milliseconds, shares, scores, durations and sizes of files, as text."""

from __future__ import annotations

import math

from layermerge.tasks.base import Score

NOTHING = "–"


def known(value: float | None) -> bool:
    """Whether there is a number to show."""
    return value is not None and math.isfinite(value)


def ms(value: float | None, unit: str = " ms") -> str:
    """Three digits that count.

    >>> ms(0.91234), ms(12.34), ms(None)
    ('0.912 ms', '12.3 ms', '–')
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{digits}f}{unit}"


def times(value: float | None) -> str:
    """
    >>> times(1.688)
    '1.69×'
    """
    return f"{value:.2f}×" if value is not None and math.isfinite(value) else NOTHING


def share(value: float | None, digits: int = 1) -> str:
    """
    >>> share(0.4512)
    '45.1 %'
    """
    return f"{100 * value:.{digits}f} %" if value is not None and math.isfinite(value) else NOTHING


def score_text(score: Score | None, unit: str = " %") -> str:
    """
    >>> score_text(Score("accuracy", 0.8745, 10)), score_text(Score("loss", 0.01234567, 10, kind="loss"))
    ('87.45 %', '0.01235')
    """
    if score is None or not known(score.value):
        return NOTHING
    return figure(score, score.value) + (unit if score.kind == "share" else "")


def figure(score: Score, value: float) -> str:
    """A value of a score's kind, without its unit."""
    return f"{100 * value:.2f}" if score.kind == "share" else f"{value:.4g}"


def interval_text(score: Score) -> str:
    """The 95 % interval of a score."""
    if score.low is None or score.high is None or not (known(score.low) and known(score.high)):
        return NOTHING
    return f"{figure(score, score.low)} to {figure(score, score.high)}"


def score_title(score: Score) -> str:
    """The name of a score, with its unit or what is better."""
    return f"{score.name} (%)" if score.kind == "share" else f"{score.name} (less is better)"


def signed(score: Score, gain: float) -> str:
    """A gain or loss: points of a share, a number otherwise.

    >>> signed(Score("accuracy", 0.9, 10), -0.0031)
    '−0.31'
    """
    number = f"{100 * gain:+.2f}" if score.kind == "share" else f"{gain:+.3g}"
    return "0" if float(number) == 0 else number.replace("-", "−")


def duration(seconds: float) -> str:
    """
    >>> duration(8.4), duration(475), duration(9000)
    ('8.4 s', '8 min', '2.5 h')
    """
    if seconds <= 0:
        return NOTHING
    if seconds < 120:
        return f"{seconds:.{1 if seconds < 10 else 0}f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def size(count: int) -> str:
    """
    >>> size(870), size(1_063_000), size(97_800_000)
    ('870 B', '1.06 MB', '97.8 MB')
    """
    value, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:.0f} B" if unit == "B" else f"{value:.3g} {unit}"


def plural(count: int, noun: str) -> str:
    """
    >>> plural(1, "layer"), plural(2000, "layer")
    ('1 layer', '2,000 layers')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def spaced(budget: str) -> str:
    """A budget as it is read: "60%" is "60 %".

    >>> spaced("60%"), spaced("12ms"), spaced("1.8x")
    ('60 %', '12 ms', '1.8×')
    """
    for end, read in (("%", " %"), ("ms", " ms"), ("x", "×")):
        if budget.endswith(end):
            return budget.removesuffix(end).rstrip() + read
    return budget
