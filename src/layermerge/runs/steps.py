"""Steps: from the plan to the exported file, as functions over a `Context`.

Every step leaves its result in the run directory and is skipped when that is up to date, so an interrupted run continues
where it stopped. Tables belong to the directory, choices to a method and budget, fine-tuned networks to a label.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from layermerge.calibration.calibrate import calibrate
from layermerge.calibration.mean_gates import with_mean_gates
from layermerge.errors import ArtifactError
from layermerge.files import document_digest, weights_digest, write_document
from layermerge.planning.candidate import Candidate
from layermerge.planning.plan import Plan, plan
from layermerge.progress import Progress
from layermerge.runs.context import Context
from layermerge.runs.directory import RunDirectory, VariantDirectory
from layermerge.runs.environment import environment_now
from layermerge.runs.forms import note_int8, scored_file, served_file, serves_integers, write_served_file
from layermerge.runs.plan_file import PlanFile
from layermerge.runs.records import CONTROL, Calibration, Choice, OriginalScore, Report, Result, Variant
from layermerge.runs.saving import restore, save
from layermerge.runtimes.base import Copies, Pass, Runtime
from layermerge.runtimes.exporting import export
from layermerge.runtimes.recording import Recording
from layermerge.solving.side_by_side import measured_beside
from layermerge.solving.whole_choices import WholeScores
from layermerge.stages import skip, stage
from layermerge.surgery.merge import MergedModule, merge
from layermerge.surgery.rewrite import RewrittenModule, rewrite
from layermerge.tables.bounds import Stakes
from layermerge.tables.branches import Branch, branch_maker, branches_of
from layermerge.tables.estimators.calibrated import CalibratedJob
from layermerge.tables.importance import ImportancePart, measure_importance_by
from layermerge.tables.latency import LatencyTable
from layermerge.tables.measuring import LatencyJob
from layermerge.tables.shards import WHOLE_TABLE, Shard
from layermerge.tables.table import Table
from layermerge.tables.workloads import Workload, workloads_of
from layermerge.tracing.fingerprint import fingerprint
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.trace import trace
from layermerge.tuning.distributed import usable_device
from layermerge.tuning.loop import finetune
from layermerge.tuning.recipe import Recipe


@dataclass(frozen=True)
class Menu:
    """A method's candidates, and what each makes the runtime do."""

    plan: Plan
    workloads: Mapping[str, Workload | None]
    file: PlanFile


def menu_of(context: Context, method: str) -> Menu:
    """The candidates of a method; written down unless what is written offers them already.

    The untouched network's file belongs to it where the runtime reads files.
    """
    directory, traced = context.directory, context.trace
    with stage("plan", "find what can be removed and merged", directory.plan):
        menu = plan(traced, context.settings.rules, method)
        known = directory.known_plan()
        offered = _offered(known) if known is not None and _complete(context, known) else {}
        if known is None or not {entry.key: entry for entry in menu.candidates}.items() <= offered.items():
            workloads, branches = workloads_of(traced, menu), branches_of(traced, menu.rules)
            known = PlanFile.of(traced.inputs, menu, workloads, branches, traced.structure.blocks)
            served = (context.untouched(), traced.inputs, _cut_out(context)) if context.runtime.reads_onnx else ()
            known = directory.write_plan(known, *served)
    return Menu(menu, {entry.key: known.workloads[entry.key] for entry in menu.candidates}, known)


def _complete(context: Context, known: PlanFile) -> bool:
    """Whether the run's file of the untouched network is there, if the runtime reads files."""
    return not context.runtime.reads_onnx or context.directory.holds_original(known)


def _offered(known: PlanFile) -> dict[str, Any]:
    return {entry.key: entry for entry in known.candidates if entry.key in known.workloads}


def original_copies(context: Context, *, passes: int, recordings: int = 0) -> Copies:
    """The untouched network in the runtime: the run's own file of it, where the runtime reads files."""
    inputs = context.trace.inputs.resized(context.settings.batch_size)
    known = context.directory.known_plan()
    if context.runtime.reads_onnx and known is not None:
        file = context.directory.require_original(known)
        return context.runtime.copies_of_file(file, inputs, passes=passes, recordings=recordings)
    return context.runtime.copies_of(context.untouched(), inputs, passes=passes, recordings=recordings)


def original_pass(context: Context) -> Pass:
    return original_copies(context, passes=1).passes[0]


def original_recordings(context: Context) -> Sequence[Recording]:
    """Where the runtime reports what each operator takes."""
    return original_copies(context, passes=0, recordings=context.runtime.copies).recordings


def _cut_out(context: Context) -> Callable[[Branch], nn.Module]:
    return branch_maker(context.trace, context.untouched)


def _branch_pass(context: Context, branch: Branch) -> Pass:
    """A branch of the untouched network in the runtime, from the run's own file where the runtime reads files."""
    inputs = branch.inputs(context.settings.batch_size)
    if context.runtime.reads_onnx:
        return context.runtime.prepare_file(context.directory.branch(branch), inputs)
    return context.runtime.prepare(_cut_out(context)(branch), inputs, small=True)


# -- tables


def measure_latency_step(context: Context, menu: Menu) -> LatencyTable:
    whole, branch = partial(original_pass, context), partial(_branch_pass, context)
    job = LatencyJob(
        menu.plan,
        menu.workloads,
        menu.file.fingerprint,
        whole,
        menu.file.branches,
        branch,
        partial(original_recordings, context),
        context.settings.stakes(context.task.ceiling),
    )
    path = context.directory.latency
    with stage("latency", f"time what the candidates compute, in {context.runtime.name}", path):
        return job.run(context.runtime, context.settings.batch_size, path)


def measure_latency_from_files(
    directory: RunDirectory, runtime: Runtime, batch: int, load: Callable[[], nn.Module], stakes: Stakes = Stakes()
) -> LatencyTable:
    """The same table from the directory's files; the model itself is loaded only where the runtime does not read files."""
    known = directory.read_plan()
    if not known.workloads:
        raise ArtifactError(
            f"'{directory.plan}' lists no workloads; write it with: layermerge plan MODEL --run-dir {directory.path}"
        )
    inputs = Inputs.of(known.example_inputs)
    copies: Callable[..., Copies]
    if runtime.reads_onnx:
        copies = partial(runtime.copies_of_file, directory.require_original(known), inputs.resized(batch))

        def branch(one: Branch) -> Pass:
            return runtime.prepare_file(directory.branch(one), one.inputs(batch))

    else:
        model = load()
        traced = trace(model, known.example_inputs, free_size=known.free_size)
        directory.require_same_network(traced.structure, traced.inputs, type(model).__name__)
        untouched = merge(rewrite(traced, []))
        copies = partial(runtime.copies_of, untouched, inputs.resized(batch))

        def branch(one: Branch) -> Pass:
            return runtime.prepare(branch_maker(traced, lambda: untouched)(one), one.inputs(batch), small=True)

    job = LatencyJob(
        known.plan,
        known.workloads,
        known.fingerprint,
        lambda: copies(passes=1).passes[0],
        known.branches,
        branch,
        lambda: copies(passes=0, recordings=runtime.copies).recordings,
        stakes,
    )
    with stage("latency", f"time what the candidates compute, in {runtime.name}", directory.latency):
        return job.run(runtime, batch, directory.latency)


def measure_importance_step(context: Context, menu: Menu, latency: LatencyTable, shard: Shard = WHOLE_TABLE) -> Table:
    settings, path = context.settings, context.directory.importance
    part = ImportancePart(path, settings.make_executor(), settings.device, shard)
    with stage("importance", "find how much each candidate changes the network's answers", path):
        scores = measure_importance_by(settings.estimator, context.trace, menu.plan, context.task, latency.fresh, part)
        wholes = whole_scores(context, menu, latency) if shard == WHOLE_TABLE else None
        return wholes.along_the_frontier(scores) if wholes else scores


def whole_scores(context: Context, menu: Menu, latency: LatencyTable) -> WholeScores | None:
    """Where divergences are summed, whole networks tell what does not add up."""
    settings = context.settings
    if settings.objective != "delta":
        return None
    job = settings.estimator.job(context.trace, menu.plan, context.task, settings.device)
    if not isinstance(job, CalibratedJob):
        return None
    return WholeScores(menu.plan, latency.fresh, job.whole, context.directory.importance, settings.make_executor())


def original_ms(context: Context) -> float:
    """Latency of the network as it was given, norms folded: the first row of its table, measured if it is not there."""
    known = context.directory.known_plan()
    if known is None or not _complete(context, known):
        menu_of(context, "layermerge")
    network = fingerprint(context.trace.structure)
    nothing = Plan(context.trace.layers, (), (), context.settings.rules, "layermerge", network)
    job = LatencyJob(nothing, {}, network, lambda: original_pass(context))
    return job.run(context.runtime, context.settings.batch_size, context.directory.latency).original_ms


# -- the result


def variant_of(context: Context, choice: Choice) -> Variant:
    solution = choice.solution
    return Variant(
        method=choice.method,
        budget=choice.budget,
        label=context.settings.label,
        budget_ms=solution.budget_ms or 0.0,
        predicted_ms=solution.latency_ms,
        error_ms=solution.error_ms,
        chosen_ms=solution.measured_ms,
        cost=choice.cost,
    )


def place_of(context: Context, variant: Variant) -> VariantDirectory:
    return context.directory.variant(variant.method, variant.budget, variant.label)


def start_of(context: Context, candidates: Iterable[Candidate]) -> RewrittenModule:
    """The network with candidates applied, as calibration and fine-tuning find it."""
    return with_mean_gates(rewrite(context.trace, candidates), context.task)


def calibrated(context: Context, variant: Variant, net: RewrittenModule) -> RewrittenModule:
    """The network that fine-tuning begins with: fitted to its original on unlabelled images, where the settings say so.

    Done once, then read. What changes nothing needs no fit; what a first stage left as it is keeps its weights.
    """
    count = context.settings.calibrate
    if not count or not any(candidate.changes for candidate in net.surgery.candidates):
        skip("calibration", "nothing to fit")
        return net
    place = place_of(context, variant)
    with stage("calibration", "fit the chosen network to the original, without training", place.calibration):
        return _calibrated(context, variant, net, count)


def _calibrated(context: Context, variant: Variant, net: RewrittenModule, count: int) -> RewrittenModule:
    place = place_of(context, variant)
    stamp = document_digest([count, weights_digest(net), context.task.describe()])
    if place.known_calibration(stamp) is not None:
        return require_rewritten(restore(place.calibrated, net))
    began = time.perf_counter()
    with Progress("calibrating", total=1) as progress:
        fitted = calibrate(net, context.task, count=count)
        progress.advance()
    score = context.task.evaluate(fitted)
    _note(place, variant)
    save(place.calibrated.path, fitted)
    seconds = round(time.perf_counter() - began, 2)
    write_document(place.calibration, Calibration(stamp, count, score, seconds))
    return fitted


def require_rewritten(net: RewrittenModule | MergedModule) -> RewrittenModule:
    if not isinstance(net, RewrittenModule):
        raise ArtifactError("the network is already merged, so it cannot be trained as it was; remove its directory")
    return net


def _note(place: VariantDirectory, variant: Variant) -> None:
    if not place.variant.is_file() or place.read_variant() != variant:
        write_document(place.variant, variant)


def tune(context: Context, variant: Variant, net: RewrittenModule, recipe: Recipe | None) -> RewrittenModule:
    """Fine-tunes on the device of the settings and saves the result, not yet merged; the network stays where it was.

    Without a recipe nothing is trained.
    """
    place, device, home = place_of(context, variant), usable_device(context.settings.device), net.device
    leads = int(os.environ.get("RANK", "0")) == 0
    if leads:
        _note(place, variant)
    if recipe is not None:
        teacher = copy.deepcopy(context.teacher).to(device) if recipe.distill else None
        with stage("fine-tuning", "train the chosen network", place.recovery):
            net = finetune(
                net.to(device),
                context.task,
                recipe,
                teacher=teacher,
                answers=context.directory.answers,
                directory=place.path,
            ).to(home)
    if leads:
        save(place.unmerged.path, net)
    return net


def stamp_of(context: Context, net: RewrittenModule, recipe: Recipe | None) -> str:
    """Names what a result depends on; to be taken before the network is calibrated and trained."""
    how = recipe.model_dump() if recipe is not None else None
    return document_digest([how, context.settings.calibrate, weights_digest(net), context.task.describe()])


def score_original(context: Context) -> OriginalScore:
    """The score to report for the network as it was given; read where the directory has it for these weights and data."""
    with stage("original", "score the network as it was given") as shown:
        stamp = document_digest([weights_digest(context.trace.module), context.task.describe()])
        known = context.directory.known_score(stamp)
        shown.reused = known is not None
        return known or OriginalScore(stamp, context.task.test(context.model))


def finish(context: Context, variant: Variant, net: RewrittenModule, recipe: Recipe | None) -> Result:
    """Calibrates, fine-tunes, merges, saves and exports a variant, then measures and scores what was exported.

    The variant may be of another network than the context's; its figures are compared with the context's original.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ArtifactError("only fine-tuning runs in many processes: torchrun -m layermerge finetune, then compress")
    stamp = stamp_of(context, net, recipe)
    tuned = tune(context, variant, calibrated(context, variant, net), recipe)
    with stage("export", "merge, export, measure and score what is served", place_of(context, variant).result):
        return serve(context, variant, merge(tuned), recipe, stamp)


def serve(context: Context, variant: Variant, merged: MergedModule, recipe: Recipe | None, stamp: str) -> Result:
    """Saves, exports, measures and scores a merged network; skipped where all of that is there for the same stamp.

    A file that missed its budget is measured again: the machine may have been busy.
    """
    place = place_of(context, variant)
    files = [place.solution, place.weights, *([served_file(context, place)] * context.runtime.reads_onnx)]
    known = place.read_result()
    if known is not None and known.stamp == stamp and known.budget_kept and all(file.is_file() for file in files):
        return Result(merged, None, known, place.path)
    save(place.path, merged)
    if context.runtime.reads_onnx:
        export(merged, place.exported, context.inputs)
    made = write_served_file(context, place)
    original = score_original(context)
    report = _report(context, variant, merged, recipe, stamp, original)
    context.directory.write_result(place, report, original)
    if made is not None:
        note_int8(context, place, made, report)
    return Result(merged, None, report, place.path)


def _report(
    context: Context, variant: Variant, merged: MergedModule, recipe: Recipe | None, stamp: str, original: OriginalScore
) -> Report:
    place, settings, whole_ms = place_of(context, variant), context.settings, original_ms(context)
    reads, inputs = context.runtime.reads_onnx, context.trace.inputs.resized(settings.batch_size)
    build = (
        partial(context.runtime.copies_of_file, served_file(context, place))
        if reads
        else partial(context.runtime.copies_of, merged)
    )
    copies = context.runtime.copies
    served = build(inputs, passes=copies).passes
    # On the table's scale: measured alongside the original.
    originals = original_copies(context, passes=copies).passes
    measured_ms = measured_beside(context.runtime, originals, served, whole_ms)
    if reads:
        network = scored_file(context, context.runtime, served_file(context, place))
    else:
        network = context.runtime.serve(merged, inputs)
    return Report(
        **vars(variant),
        stamp=stamp,
        runtime=context.runtime.name,
        threads=settings.threads,
        batch_size=settings.batch_size,
        original_ms=whole_ms,
        measured_ms=measured_ms,
        budget_kept=variant.method == CONTROL or measured_ms <= variant.budget_ms,
        original_score=original.score,
        score=context.task.test(network),
        held_out=context.task.evaluate(network if serves_integers(context) else merged),
        convs_before=count_convs(context.trace.module),
        convs_after=count_convs(merged),
        epochs=0.0 if recipe is None else recipe.epochs,
        calibrated=place.read_calibrated(),
        environment=environment_now(),
    )


def count_convs(module: nn.Module) -> int:
    return sum(isinstance(part, nn.Conv2d) for part in module.modules())
