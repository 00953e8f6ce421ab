"""Expected scores: what a choice that has not been built would score on the test data, before any fine-tuning.

Estimates are of held-out training images, which a network may know better than those of the test. So the fall is taken
from them, and the level from the original's own test score: a share falls by as many points, a loss grows by the same factor.
"""

from __future__ import annotations

from layermerge.reporting.fact_records import EstimateFacts
from layermerge.solving.estimated_score import EstimatedScore
from layermerge.tasks.base import Score


def expected_score(estimated: EstimatedScore, held_out: float, tested: Score) -> EstimateFacts:
    """`held_out` and `tested` are the original's: on the images that the estimate is of, and on the test data.

    >>> expected_score(EstimatedScore(0.86, 0.02), 0.93, Score("accuracy", 0.9, 1500))
    EstimateFacts(value=0.83, low=0.81, high=0.85)
    """
    if tested.kind == "share":
        ends = [tested.value + estimated.value + sign * estimated.error - held_out for sign in (0, -1, 1)]
        value, low, high = (round(min(max(end, 0.0), 1.0), 6) for end in ends)
        return EstimateFacts(value, low, high)
    factor = tested.value / -held_out if held_out < 0 else 1.0
    value, low, high = (factor * max(sign * estimated.error - estimated.value, 0.0) for sign in (0, -1, 1))
    return EstimateFacts(value, low, high)
