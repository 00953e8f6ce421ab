"""Verdict: whether a result is good, in words, and what to try where it is not. The only place that decides this.

In: a result. Out: a `Verdict`. A pure function of the result's figures.

- Good: the budget was met, the network is faster, and no loss was measured that matters. No measured loss is good only if the
  interval leaves no room for a loss that does matter.
- Fair: a small loss, a budget just missed, or too few test examples to tell.
- Bad: a large loss, a budget clearly missed, or a network that is not faster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from layermerge.reporting.numbers import figure, known, ms, plural, share, signed, spaced, times
from layermerge.reporting.score_change import ScoreChange, score_change
from layermerge.runs.records import Report

Tone = Literal["good", "fair", "bad", "unknown"]
_WORST: tuple[Tone, ...] = ("good", "unknown", "fair", "bad")

SMALL_LOSS, LARGE_LOSS = 0.005, 0.03
"""Shares of the original's score; below the first a loss does not matter, above the second it is a bad one."""
SMALL_DISTANCE, LARGE_DISTANCE = 0.02, 0.1
"""The same where the score is a distance to the original, of which 0 is the original and 1 says the same of every image."""
_JUST_MISSED = 0.02
_FEW_EPOCHS = 5.0


@dataclass(frozen=True)
class Verdict:
    """`title` says it in one line; `score` and `budget` say how sure; `advice` is what to try, nothing where it is good."""

    tone: Tone
    title: str
    score: str
    budget: str
    advice: tuple[str, ...] = ()


def verdict_of(report: Report) -> Verdict:
    """What is to be thought of a result."""
    change = score_change(report.original_score, report.score)
    score_tone, loss, told = _score_part(report, change)
    budget_tone, kept = _budget_part(report)
    faster = report.speed_up > 1.0
    tones: tuple[Tone, ...] = (score_tone, budget_tone, "good" if faster else "bad")
    tone = max(tones, key=_WORST.index)
    speed = f"{times(report.speed_up)} faster" if faster else f"Not faster ({times(report.speed_up)})"
    return Verdict(tone, f"{speed}, {loss}", told, kept, tuple(_advice(report, change, score_tone, faster)))


def relative_loss(report: Report) -> float:
    """The share of the original's score that was lost, below 0 where it was gained; of a distance, the distance."""
    gain = score_change(report.original_score, report.score).gain
    return -gain / (abs(report.original_score.value) or 1.0)


def _score_part(report: Report, change: ScoreChange) -> tuple[Tone, str, str]:
    """The tone, the loss in a few words, and how sure it is."""
    before, after = report.original_score, report.score
    if not known(after.value):
        return (
            "unknown",
            "score unknown",
            "The compressed network's score is not a number, so nothing can be said of it.",
        )
    if before.value == 0 and after.kind == "loss":
        return _distance_part(report)
    percent, unit = (" %", " points") if after.kind == "share" else ("", "")
    figures = f"{figure(before, before.value)} → {figure(after, after.value)}{percent}"
    told = f"{figures}: {signed(after, _shown_sign(report, change.gain))}{unit}, {_sureness(report, change)}"
    if change.low is not None and change.high is not None and change.high >= 0:
        return _unmeasured_loss(report, change, change.low, told)
    loss = relative_loss(report)
    tone: Tone = "good" if loss <= SMALL_LOSS else "fair" if loss <= LARGE_LOSS else "bad"
    if after.kind == "loss":
        return tone, f"{after.name} {100 * loss:.1f} % higher", told
    size = {"good": "small ", "fair": "", "bad": "large "}[tone]
    return tone, f"{size}loss of {after.name} ({abs(100 * change.gain):.1f} points)", told


def _unmeasured_loss(report: Report, change: ScoreChange, low: float, told: str) -> tuple[Tone, str, str]:
    """Where the interval does not say that anything was lost."""
    score = report.score
    worse = f"loss of {score.name}" if score.kind == "share" else f"rise of the {score.name}"
    if low > 0:
        return "good", f"better {score.name}", told
    if -low <= LARGE_LOSS * (abs(report.original_score.value) or 1.0):
        return "good", f"no measurable {worse}", told
    shown = signed(score, _shown_sign(report, change.gain)) + (" points" if score.kind == "share" else "")
    return "fair", f"perhaps a {worse} ({shown})", f"{told} The test data are too few to rule out a large loss."


def _distance_part(report: Report) -> tuple[Tone, str, str]:
    score, distance = report.score, report.score.value
    tone: Tone = "good" if distance <= SMALL_DISTANCE else "fair" if distance <= LARGE_DISTANCE else "bad"
    words = {
        "good": "answers as the original does",
        "fair": "answers close to the original's",
        "bad": "answers far from the original's",
    }
    sure = "" if score.low is None or score.high is None else f", 95 % interval {score.low:.3g} to {score.high:.3g}"
    scale = "0 is the original, 1 a network that says the same of every image"
    return tone, words[tone], f"Distance {distance:.3g} ({scale}){sure}, on {plural(score.count, 'test example')}."


def _shown_sign(report: Report, gain: float) -> float:
    """A loss is shown as it is measured: a higher one is worse."""
    return gain if report.score.kind == "share" else -gain


def _sureness(report: Report, change: ScoreChange) -> str:
    count = plural(report.score.count, "test example")
    if change.low is None or change.high is None:
        return f"on {count}; how sure this is was not recorded."
    ends = sorted(_shown_sign(report, end) for end in (change.low, change.high))
    between = " to ".join(signed(report.score, end) for end in ends)
    how = "paired 95 % interval" if change.basis == "paired" else "95 % interval"
    wide = (
        ""
        if change.basis == "paired"
        else " (wider than necessary: which examples each network got right was not recorded)"
    )
    return f"{how} {between}{wide}, on {count}."


def _budget_part(report: Report) -> tuple[Tone, str]:
    over = report.measured_ms / report.budget_ms - 1 if report.budget_ms > 0 else math.inf
    asked = f"budget {spaced(report.budget)} ({ms(report.budget_ms)})"
    if report.budget_kept:
        return "good", f"Budget met: {ms(report.measured_ms)} measured on the exported file, {asked}."
    tone: Tone = "fair" if over <= _JUST_MISSED else "bad"
    return tone, f"Budget missed by {share(over)}: {ms(report.measured_ms)} measured on the exported file, {asked}."


def _advice(report: Report, change: ScoreChange, tone: Tone, faster: bool) -> list[str]:
    advice = []
    if tone in ("fair", "bad", "unknown"):
        advice += _training_advice(report, change)
    if not report.budget_kept:
        advice.append(
            "If the machine was busy, run the same command again: it measures the file again. If not, ask for a smaller budget."
        )
    if not faster:
        advice.append("Ask for a smaller budget, or measure on the runtime and batch size that will be served.")
    return advice


def _training_advice(report: Report, change: ScoreChange) -> list[str]:
    if change.high is not None and change.high >= 0 and report.original_score.value != 0:
        advice = [f"Test on more images: {report.score.count:,} are too few to tell."]
    else:
        advice = []
    if report.epochs == 0.0:
        advice.append(
            "It was not fine-tuned. Fine-tune it: leave out `--finetune none`, or set `finetune.epochs` in the recipe."
        )
    elif report.epochs is not None and report.epochs < _FEW_EPOCHS:
        epochs = f"{report.epochs:g} epoch{'' if report.epochs == 1 else 's'}"
        advice.append(f"It was fine-tuned for {epochs}. Train longer: `--set finetune.epochs=10`.")
    wider = min(95, 5 * math.ceil(20 * report.budget_ms / report.original_ms) + 10)
    return [*advice, f"Ask for a larger budget, such as `--budget {wider}%`."]
