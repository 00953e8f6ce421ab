"""Verdicts, case by case, from figures made by hand; and how sure a change of the score is, against published figures and
a simulation."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from layermerge.errors import DataError
from layermerge.reporting.score_change import score_change
from layermerge.reporting.verdict import Verdict, verdict_of
from layermerge.tasks.base import Score, bits_text, right_bits
from layermerge.tasks.classification import wilson_interval
from reporting.report_runs import report


def accuracy(value: float, count: int = 10_000, *, half: float | None = 0.003) -> Score:
    low, high = (None, None) if half is None else (value - half, value + half)
    return Score("accuracy", value, count, low, high)


def judged(after: Score, before: Score | None = None, **more: Any) -> Verdict:
    return verdict_of(report(original_score=before or accuracy(0.9), score=after, **more))


# -- verdicts


def test_good() -> None:
    verdict = judged(accuracy(0.898), measured_ms=11.8)
    assert verdict.tone == "good"
    assert verdict.title == "1.69× faster, no measurable loss of accuracy"
    assert verdict.score.startswith("90.00 → 89.80 %: −0.20 points, 95 % interval −0.62 to +0.22")
    assert "on 10,000 test examples" in verdict.score
    assert verdict.budget == "Budget met: 11.8 ms measured on the exported file, budget 60 % (12.0 ms)."
    assert verdict.advice == ()


def test_a_gain_and_a_loss_too_small_to_matter_are_good() -> None:
    better = judged(accuracy(0.91))
    assert (better.tone, better.title) == ("good", "1.74× faster, better accuracy")
    small = judged(accuracy(0.8965, half=0.0005), accuracy(0.9, half=0.0005))
    assert (small.tone, small.title) == ("good", "1.74× faster, small loss of accuracy (0.4 points)")


def test_a_loss_that_can_be_measured_is_looked_at_closer() -> None:
    verdict = judged(accuracy(0.885))
    assert (verdict.tone, verdict.title) == ("fair", "1.74× faster, loss of accuracy (1.5 points)")
    assert any("3 epochs" in line and "finetune.epochs=10" in line for line in verdict.advice)
    assert any("--budget 70%" in line for line in verdict.advice)


def test_a_large_loss_is_bad_whatever_the_speed() -> None:
    verdict = judged(accuracy(0.68), epochs=0.5)
    assert (verdict.tone, verdict.title) == ("bad", "1.74× faster, large loss of accuracy (22.0 points)")
    assert "It was fine-tuned for 0.5 epochs." in verdict.advice[0]
    long = judged(accuracy(0.68), epochs=30.0)
    assert len(long.advice) == 1
    assert "larger budget" in long.advice[0]


def test_without_fine_tuning_it_says_so() -> None:
    assert judged(accuracy(0.68), epochs=0.0).advice[0].startswith("It was not fine-tuned.")
    assert len(judged(accuracy(0.68), epochs=None).advice) == 1  # the recipe counts steps


def test_too_few_test_examples_are_not_good() -> None:
    verdict = judged(accuracy(0.89, 90, half=0.07), accuracy(0.9, 90, half=0.06))
    assert (verdict.tone, verdict.title) == ("fair", "1.74× faster, perhaps a loss of accuracy (−1.00 points)")
    assert "too few to rule out a large loss" in verdict.score
    assert verdict.advice[0] == "Test on more images: 90 are too few to tell."


def test_a_missed_budget_is_never_good() -> None:
    just = judged(accuracy(0.9), measured_ms=12.1, budget_kept=False)
    assert (just.tone, just.budget[:23]) == ("fair", "Budget missed by 0.8 %:")
    clearly = judged(accuracy(0.9), measured_ms=14.0, budget_kept=False)
    assert (clearly.tone, clearly.budget[:24]) == ("bad", "Budget missed by 16.7 %:")
    assert "measures the file again" in clearly.advice[0]


def test_what_is_not_faster_is_bad() -> None:
    verdict = judged(accuracy(0.9), measured_ms=20.5, budget_ms=30.0)
    assert verdict.tone == "bad"
    assert verdict.title.startswith("Not faster (0.98×)")
    assert any("smaller budget" in line for line in verdict.advice)


def test_a_score_without_an_interval_is_judged_by_its_value() -> None:
    verdict = judged(accuracy(0.885, half=None))
    assert verdict.tone == "fair"
    assert "how sure this is was not recorded" in verdict.score


def test_no_score() -> None:
    verdict = judged(Score("accuracy", math.nan, 10))
    assert (verdict.tone, verdict.title) == ("unknown", "1.74× faster, score unknown")


def distance(value: float) -> Verdict:
    zero = Score("distance to the original", 0.0, 1500, 0.0, 0.0, kind="loss")
    return judged(replace(zero, value=value, low=0.9 * value, high=1.1 * value), zero)


def test_imitation_goes_by_the_distance() -> None:
    near, apart, far = map(distance, (0.01, 0.064, 0.3))
    assert (near.tone, apart.tone, far.tone) == ("good", "fair", "bad")
    assert near.title == "1.74× faster, answers as the original does"
    assert apart.score == (
        "Distance 0.064 (0 is the original, 1 a network that says the same of every image), 95 % interval 0.0576 to 0.0704, "
        "on 1,500 test examples."
    )
    assert "Test on more images" not in " ".join(far.advice)


def test_of_a_loss_less_is_better() -> None:
    def noise(value: float) -> Score:
        return Score("noise loss", value, 2000, value - 0.0001, value + 0.0001, kind="loss")

    worse, same, better = (judged(noise(value), noise(0.03)) for value in (0.0345, 0.03005, 0.028))
    assert (worse.tone, worse.title) == ("bad", "1.74× faster, noise loss 15.0 % higher")
    assert "+0.0045" in worse.score
    assert (same.tone, same.title) == ("good", "1.74× faster, no measurable rise of the noise loss")
    assert (better.tone, better.title) == ("good", "1.74× faster, better noise loss")


# -- how sure a change is


def test_the_interval_of_two_shares_is_newcombes() -> None:
    """Newcombe (1998), table II, method 10: 56 of 70 against 48 of 80."""
    before = Score("accuracy", 48 / 80, 80, *wilson_interval(48, 80))
    after = Score("accuracy", 56 / 70, 70, *wilson_interval(56, 70))
    change = score_change(before, after)
    assert change.basis == "separate"
    assert change.low == pytest.approx(0.0524, abs=5e-5)
    assert change.high == pytest.approx(0.3339, abs=5e-5)


def test_paired_intervals_hold_what_a_simulation_finds() -> None:
    """95 of 100 intervals hold the true change, and they are narrower than those of two shares."""
    generator = np.random.default_rng(3)
    count, held, widths = 400, 0, []
    for _ in range(600):
        first = generator.random(count) < 0.9
        second = np.where(generator.random(count) < 0.05, ~first, first)  # 4.5 % get lost, 0.5 % are won
        scores = []
        for right in (first, second):
            known, correct = torch.from_numpy(right), int(right.sum())
            interval = wilson_interval(correct, count)
            scores.append(Score("accuracy", correct / count, count, *interval, right=bits_text(known)))
        paired = score_change(scores[0], scores[1])
        apart = score_change(*(replace(score, right=None) for score in scores))
        assert paired.basis == "paired"
        assert paired.gain == pytest.approx(apart.gain)
        assert None not in (paired.low, paired.high, apart.low, apart.high)
        held += (paired.low or 0.0) <= -0.04 <= (paired.high or 0.0)
        widths.append(((paired.high or 0.0) - (paired.low or 0.0)) / ((apart.high or 0.0) - (apart.low or 0.0)))
    assert 0.92 <= held / 600 <= 0.98
    assert max(widths) < 0.75


def test_bits_come_back_and_wrong_ones_are_refused() -> None:
    right = torch.rand(1003, generator=torch.Generator().manual_seed(0)) < 0.7
    assert np.array_equal(right_bits(bits_text(right), 1003), right.numpy())
    with pytest.raises(DataError, match="not of 900 examples"):
        right_bits(bits_text(right), 900)
    with pytest.raises(DataError, match="not base64"):
        right_bits("%%%", 3)
    cut = replace(accuracy(0.9, 1003), right=bits_text(right)[:8])
    assert score_change(cut, cut).basis == "separate"
