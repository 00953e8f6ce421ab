"""A network that was chosen on another machine, trained here as it was chosen there: no table is measured again.

In: a run, and what a result file says of the same choice without training. Out: the run's result.
"""

from __future__ import annotations

from collections.abc import Sequence

from layermerge.planning.candidate import Candidate
from layermerge.runs.context import Context
from layermerge.runs.records import Report, Result, Variant
from layermerge.runs.steps import finish, original_ms, start_of
from layermerge.solving.budget import budget_ms


def unknown_here(context: Context, method: str, budget: str) -> bool:
    """Whether the run directory holds no choice of its own, so that another machine's is to be taken."""
    return not context.directory.choice(method, budget).is_file()


def train_as_chosen(context: Context, untrained: Report, candidates: Sequence[Candidate]) -> Result:
    """Calibrated, trained and exported; the budget is the same share of the original as timed here."""
    variant = Variant(
        method=untrained.method,
        budget=untrained.budget,
        label=context.settings.label,
        budget_ms=budget_ms(untrained.budget, original_ms(context)),
        cost=untrained.cost,
    )
    return finish(context, variant, start_of(context, candidates), context.settings.finetune)
