"""Methods by name: LayerMerge, what it is compared with, and the control that every accuracy is compared with.

Each takes a `Run` and a budget and gives a `Result`; all are fine-tuned by the same recipe and measured in the same way.
Methods of two stages spend half of the epochs on each.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from layermerge.files import Record, read_document, document_text, text_writer, weights_digest, write_files
from layermerge.baselines.channel_pruning import prune_channels, prune_to_latency
from layermerge.baselines.student import make_student
from layermerge.errors import PlanError
from layermerge.planning.plan import METHODS
from layermerge.runs.recipe import Settings
from layermerge.solving.budget import budget_ms
from layermerge.runs.steps import Result, Run, Variant
from layermerge.surgery.rewrite import rewrite
from layermerge.tracing.trace import trace
from layermerge.tuning.recipe import Distillation, Recipe

CONTROL = "original"
"""The network as it came, fine-tuned as long as the others."""


def run_method(run: Run, method: str, budget: str) -> Result:
    """Compresses the run's network by a method to a budget."""
    require_known(method, budget)
    _ = run.original_score  # quick, and the first to notice data that do not fit the network
    return run.compress(method, budget) if method in METHODS else _PROCEDURES[method](run, budget)


def require_known(method: str, budget: str) -> None:
    """Refuses a method that does not exist or a budget that cannot be read, before anything is measured."""
    if method not in method_names():
        raise PlanError(f"unknown method '{method}'; choose one of {', '.join(method_names())}")
    budget_ms(budget, 1.0)


def method_names() -> list[str]:
    return [*METHODS, *_PROCEDURES]


def run_control(run: Run) -> Result:
    """Fine-tunes the original network as long as the compressed ones."""
    whole = run.original_ms
    variant = Variant(rewrite(run.trace, []), CONTROL, "100%", whole, chosen_ms=whole)
    return run.finish(variant, run.settings.finetune)


def _sequential(run: Run, budget: str) -> Result:
    """Depth to a first budget, then LayerOnly on its merged network to what is left of the budget."""
    first = _half(run).compress("depth", _first_budget(run, budget))
    return _second_stage(run, first, "layeronly", "sequential", budget)


def _channels(run: Run, budget: str) -> Result:
    return run.finish(_pruned(run, "channels", budget), run.settings.finetune)


def _channels_then(method: str) -> Callable[[Run, str], Result]:
    """Channel pruning to a first budget, then a method to what is left of the budget."""

    def procedure(run: Run, budget: str) -> Result:
        half = _half(run)
        first = half.finish(_pruned(half, "channels", _first_budget(run, budget)), half.settings.finetune)
        return _second_stage(run, first, method, f"channels+{method}", budget)

    return procedure


def _student(run: Run, budget: str) -> Result:
    """A narrower network of the same kind, trained from scratch by distillation for the same epochs."""
    pruned = _pruned(run, "student", budget)
    fresh = make_student(pruned.net, run.settings.finetune.seed)
    recipe = run.settings.finetune
    if recipe.distill is None:
        recipe = recipe.model_copy(update={"distill": Distillation()})
    net = rewrite(trace(fresh, run.inputs), [])
    return run.finish(Variant(net, "student", budget, pruned.budget_ms, chosen_ms=pruned.chosen_ms), recipe)


class PrunedRecord(Record):
    """channels.json: the share of channels whose removal was measured to keep a budget."""

    stamp: str
    ratio: float
    measured_ms: float


def _pruned(run: Run, method: str, budget: str) -> Variant:
    """The network with fewer channels; how many fewer is measured once, then read."""
    path = run.place("channels", budget) / "channels.json"
    stamp = weights_digest(run.trace.module)
    record = read_document(path, PrunedRecord) if path.is_file() else None
    if record is None or record.stamp != stamp:
        found = prune_to_latency(
            run.model,
            run.inputs,
            budget,
            runtime=run.runtime,
            original_ms=run.original_ms,
            batch_size=run.settings.batch_size,
        )
        record = PrunedRecord(stamp=stamp, ratio=found.ratio, measured_ms=found.measured_ms)
        write_files({path: text_writer(document_text(record))})
    net = rewrite(trace(prune_channels(run.model, run.inputs, record.ratio), run.inputs), [])
    return Variant(net, method, budget, budget_ms(budget, run.original_ms), chosen_ms=record.measured_ms)


def _first_budget(run: Run, budget: str) -> str:
    """Where the recipe does not say: the geometric mean of all and the budget."""
    share = budget_ms(budget, run.original_ms) / run.original_ms
    return run.settings.first_budget or f"{100 * math.sqrt(min(share, 1.0)):.2f}%"


def _half(run: Run) -> Run:
    """The same run with half the epochs, under a label of its own."""
    settings = run.settings
    halved = settings.model_copy(
        update={"finetune": half_of(settings.finetune), "label": f"{settings.label}-half"},
    )
    return Run(run.model, run.task, run.directory, halved, run.teacher)


def half_of(recipe: Recipe) -> Recipe:
    """Half as long; a step at least."""
    if recipe.epochs is not None:
        return recipe.model_copy(update={"epochs": recipe.epochs / 2, "warmup_epochs": recipe.warmup_epochs / 2})
    return recipe.model_copy(update={"steps": max(1, (recipe.steps or 1) // 2)})


def _second_stage(run: Run, first: Result, method: str, name: str, budget: str) -> Result:
    """Traces the first stage's merged network again, and compresses that; figures are those of the whole way."""
    share = budget_ms(budget, run.original_ms) / first.report.measured_ms
    directory = first.directory / f"then-{method}"
    second = Run(first.module, run.task, directory, _bounded(run.settings), run.teacher)
    met, cost = second.choose(method, f"{100 * min(share, 1.0):.4f}%")
    variant = Variant(
        rewrite(second.trace, met.candidates),
        name,
        budget,
        budget_ms(budget, run.original_ms),
        chosen_ms=(met.measured_ms or 0.0) / second.original_ms * first.report.measured_ms,
        cost=cost + first.report.cost,
    )
    return run.finish(variant, half_of(second.settings.finetune))


def _bounded(settings: Settings) -> Settings:
    """A merged network has no norms left to tame its gradients: they are clipped, unless the recipe does so already."""

    def clipped(recipe: Recipe) -> Recipe:
        return recipe if recipe.clip_norm else recipe.model_copy(update={"clip_norm": 1.0})

    return settings.model_copy(
        update={"importance": clipped(settings.importance), "finetune": clipped(settings.finetune)}
    )


_PROCEDURES: dict[str, Callable[[Run, str], Result]] = {
    "sequential": _sequential,
    "channels": _channels,
    **{f"channels+{method}": _channels_then(method) for method in METHODS},
    "student": _student,
}
