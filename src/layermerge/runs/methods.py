"""Methods by name: LayerMerge, the baselines it is compared with, and the control that every accuracy is compared with.

Each is a function from a `Context` and a budget to a `Result`; all are fine-tuned by the same recipe and measured in the same
way. Methods of two stages spend half of the epochs on each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import nn

from layermerge.baselines.channel_criteria import ChannelCriterion
from layermerge.baselines.channel_pruning import prune_channels, prune_to_latency
from layermerge.baselines.student import make_student
from layermerge.calibration.norms import settle_norms
from layermerge.errors import PlanError, RecipeError
from layermerge.files import document_digest, weights_digest, write_document
from layermerge.planning.plan import METHODS as MENUS
from layermerge.runs.choosing import choose
from layermerge.runs.context import Context, open_context
from layermerge.runs.recipe import Settings
from layermerge.runs.records import CONTROL, ChannelShare, Result, Variant
from layermerge.runs.steps import finish, original_ms, score_original, start_of, variant_of
from layermerge.solving.budget import Budget, budget_ms, budget_text
from layermerge.stages import expect, stage
from layermerge.surgery.rewrite import RewrittenModule, rewrite
from layermerge.tasks.base import Draw
from layermerge.tracing.trace import Trace, trace
from layermerge.tuning.recipe import Distillation, Recipe


def run_method(context: Context, method: str, budget: str) -> Result:
    """Compresses the network by a method to a budget."""
    require_known(method, budget)
    expect(stages_of(method, context.settings), f"{method} at {budget}")
    score_original(context)  # quick, and the first to notice data that do not fit the network
    return METHODS[method](context, budget)


def stages_of(method: str, settings: Settings) -> tuple[str, ...]:
    """What a method does, in order."""
    chosen = ("plan", "latency", "importance", "choice", *_recovery(settings, calibrates=True), "export")
    pruned = ("channels", *_recovery(settings, calibrates=False), "export")
    if method == "sequential":
        return ("original", *chosen, *chosen)
    if method in MENUS:
        return ("original", *chosen)
    return ("original", *pruned, *(chosen if method.startswith("channels+") else ()))


def _recovery(settings: Settings, *, calibrates: bool) -> tuple[str, ...]:
    calibration = ("calibration",) if calibrates and settings.calibrate else ()
    return (*calibration, *(("fine-tuning",) if settings.finetune is not None else ()))


def require_known(method: str, budget: Budget) -> str:
    """The budget as text; refuses one that cannot be read, or a method that does not exist, before anything is measured."""
    if method not in METHODS:
        raise PlanError(f"unknown method '{method}'; choose one of {', '.join(METHODS)}")
    return budget_text(budget)


def run_control(context: Context) -> Result:
    """Fine-tunes the original network as long as the compressed ones."""
    trained = _recovery(context.settings, calibrates=False)
    expect(("original", *trained, "export"), f"the original{', fine-tuned as long' if trained else ''}")
    with stage("original", "time the network as it came", context.directory.plan, context.directory.latency):
        variant = control_of(context)
    return finish(context, variant, rewrite(context.trace, []), context.settings.finetune)


def control_of(context: Context) -> Variant:
    whole = original_ms(context)
    return Variant(method=CONTROL, budget="100%", label=context.settings.label, budget_ms=whole, chosen_ms=whole)


def _solved(menu: str, context: Context, budget: str) -> Result:
    """A method that solves over the network's own tables."""
    choice = choose(context, menu, budget)
    net = start_of(context, choice.solution.candidates)
    result = finish(context, variant_of(context, choice), net, context.settings.finetune)
    return replace(result, solution=choice.solution)


def _sequential(context: Context, budget: str) -> Result:
    """Depth to a first budget, then LayerOnly on its merged network to what is left of the budget."""
    half = _half(context)
    choice = choose(half, "depth", _first_budget(context, budget))
    variant = replace(variant_of(half, choice), first_of_two=True)
    first = finish(half, variant, start_of(half, choice.solution.candidates), half.settings.finetune)
    return _second_stage(context, first, "layeronly", "sequential", budget)


def _channels(context: Context, budget: str) -> Result:
    return finish(context, *_without_channels(context, budget), context.settings.finetune)


def _without_channels(context: Context, budget: str) -> tuple[Variant, RewrittenModule]:
    """The pruned network, its norms estimated again if networks are calibrated at all."""
    variant, net = _pruned(context, "channels", budget)
    if context.settings.calibrate:
        settle_norms(net, context.task, context.settings.calibrate)
    return variant, net


def criterion_of(context: Context) -> ChannelCriterion:
    """By what channels are ranked; gradients are of the task's own loss, on as many images as networks are calibrated on."""
    settings, task = context.settings, context.task

    def gradients(network: nn.Module) -> None:
        left = settings.calibrate or Settings().calibrate
        for batch in task.train_batches(Draw(seed=0, batch_size=50)):
            task.loss(task.forward(network, batch), batch).backward()  # type: ignore[no-untyped-call]
            left -= len(batch[0])
            if left <= 0:
                break

    return ChannelCriterion(settings.channel_measure, settings.channel_ranking, gradients)


def _channels_then(method: str, context: Context, budget: str) -> Result:
    """Channel pruning to a first budget, then a method to what is left of the budget."""
    half = _half(context)
    variant, net = _without_channels(half, _first_budget(context, budget))
    first = finish(half, replace(variant, first_of_two=True), net, half.settings.finetune)
    return _second_stage(context, first, method, f"channels+{method}", budget)


def _student(context: Context, budget: str) -> Result:
    """A narrower network of the same kind, trained from scratch by distillation for the same epochs."""
    recipe = context.settings.finetune
    if recipe is None:
        raise RecipeError("a student is trained from scratch; leave out finetune: none")
    variant, narrow = _pruned(context, "student", budget)
    if recipe.distill is None:
        recipe = recipe.model_copy(update={"distill": Distillation()})
    fresh = rewrite(_traced(context, make_student(narrow, recipe.seed)), [])
    return finish(context, variant, fresh, recipe)


def _pruned(context: Context, method: str, budget: str) -> tuple[Variant, RewrittenModule]:
    """The network with fewer channels; how many fewer is measured once, then read."""
    criterion, file = criterion_of(context), context.directory.channels(budget)
    stamp = document_digest([weights_digest(context.trace.module), criterion.measure, criterion.across])
    with stage("channels", "find how many channels fit the budget", file):
        whole_ms = original_ms(context)
        share = context.directory.known_channels(budget, stamp)
        if share is None:
            found = prune_to_latency(
                context.model,
                context.inputs,
                budget,
                runtime=context.runtime,
                original_ms=whole_ms,
                batch_size=context.settings.batch_size,
                criterion=criterion,
            )
            share = ChannelShare(stamp, found.ratio, found.measured_ms)
            write_document(file, share)
    net = rewrite(_traced(context, prune_channels(context.model, context.inputs, share.ratio, criterion)), [])
    allowed = budget_ms(budget, whole_ms)
    label = context.settings.label
    return Variant(method=method, budget=budget, label=label, budget_ms=allowed, chosen_ms=share.measured_ms), net


def _traced(context: Context, module: nn.Module) -> Trace:
    """Another network in place of the context's, traced as its own was."""
    return trace(module, context.inputs, free_size=context.trace.free_size)


def _first_budget(context: Context, budget: str) -> str:
    """Where the recipe does not say: the geometric mean of all and the budget."""
    whole = original_ms(context)
    share = budget_ms(budget, whole) / whole
    return context.settings.first_budget or f"{100 * math.sqrt(min(share, 1.0)):.2f}%"


def _half(context: Context) -> Context:
    """The same with half the epochs, under a label of its own."""
    settings = context.settings
    changes = {"finetune": half_of(settings.finetune), "label": f"{settings.label}-half"}
    return context.with_settings(settings.model_copy(update=changes))


def half_of(recipe: Recipe | None) -> Recipe | None:
    """Half as long; a step at least."""
    if recipe is None:
        return None
    if recipe.epochs is not None:
        return recipe.model_copy(update={"epochs": recipe.epochs / 2, "warmup_epochs": recipe.warmup_epochs / 2})
    return recipe.model_copy(update={"steps": max(1, (recipe.steps or 1) // 2)})


def _second_stage(context: Context, first: Result, method: str, name: str, budget: str) -> Result:
    """Traces the first stage's merged network again, and compresses that; figures are those of the whole way."""
    report, allowed = first.report, budget_ms(budget, original_ms(context))
    place = context.directory.variant(report.method, report.budget, report.label).second_stage(method)
    second = open_context(first.module, context.task, place.path, _bounded(context.settings), context.teacher)
    choice = choose(second, method, f"{100 * min(allowed / report.measured_ms, 1.0):.4f}%")
    variant = Variant(
        method=name,
        budget=budget,
        label=context.settings.label,
        budget_ms=allowed,
        chosen_ms=(choice.solution.measured_ms or 0.0) / choice.original_ms * report.measured_ms,
        cost=choice.cost + report.cost,
    )
    net = start_of(second, choice.solution.candidates)
    return finish(context, variant, net, half_of(second.settings.finetune))


def _bounded(settings: Settings) -> Settings:
    """A merged network has no norms left to tame its gradients: they are clipped, unless the recipe does so already."""

    def clipped(recipe: Recipe | None) -> Recipe | None:
        return recipe if recipe is None or recipe.clip_norm else recipe.model_copy(update={"clip_norm": 1.0})

    return settings.model_copy(
        update={"importance": clipped(settings.importance), "finetune": clipped(settings.finetune)}
    )


METHODS: dict[str, Callable[[Context, str], Result]] = {
    **{menu: partial(_solved, menu) for menu in MENUS},
    "sequential": _sequential,
    "channels": _channels,
    **{f"channels+{menu}": partial(_channels_then, menu) for menu in MENUS},
    "student": _student,
}
