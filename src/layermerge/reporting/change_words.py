"""Change words: what the importance of a candidate is, and what a solver sums, for people who have not read the paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from layermerge.data.sets import Scalar
from layermerge.reporting.fact_records import RunFacts
from layermerge.tables.bounds import Objective
from layermerge.tasks.base import Score

_ANSWERS = {
    "classification": "the probabilities that it gives to the classes",
    "diffusion": "the noise that it predicts",
}


@dataclass(frozen=True)
class ChangeWords:
    """`title` heads a column of changes, `scale` is what a change is multiplied by to be a cost in it, `explanation` says
    what it is."""

    title: str
    scale: float
    digits: int
    explanation: str
    trained: bool

    def sum_title(self, objective: Objective) -> str:
        return "importance kept" if objective == "exp" else f"{self.title}, in all"

    def sum_text(self, objective: Objective, importance: float) -> str:
        return f"{importance:.3f}" if objective == "exp" else f"{self.scale * importance + 0.0:.{self.digits}f}"

    def solver(self, objective: Objective, layers: int) -> str:
        """How choices are made, in words."""
        begin = "Each way to remove or merge layers was tried by itself. " + self.explanation
        if objective == "exp":
            return (
                f"{begin} The solver takes exp of each change, so that a layer that is left as it is counts 1, and finds the "
                f"choice with the largest sum that fits the budget. That sum is the importance kept; the original has {layers}."
            )
        return f"{begin} The solver finds the choice with the smallest sum of these that fits the budget; the original has 0."


def change_words(facts: RunFacts) -> ChangeWords:
    """By what the importance table of a run was measured with."""
    return words_for(facts.importance_setting, facts.original_score)


def words_for(setting: Mapping[str, Scalar], score: Score | None) -> ChangeWords:
    """By the provenance of an importance table, and a score of the task's kind."""
    if setting.get("estimator") == "calibrated":
        answers = _ANSWERS.get(str(setting.get("task.task")), "its outputs")
        return ChangeWords(
            "answers move by",
            -1.0,
            3,
            f"How far the network's answers ({answers}) then move away from the original's was measured on held-out images, "
            "after a quick fit and without training: 0 is not at all.",
            False,
        )
    share = score is None or score.kind == "share"
    unit = "points" if share else "in units of the original's"
    return ChangeWords(
        f"score lost ({unit})" if share else "score lost",
        -100.0 if share else -1.0,
        2 if share else 3,
        "How much of the score it then lost on held-out images was measured after a short training.",
        True,
    )
