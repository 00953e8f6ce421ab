"""Evidence: what LayerMerge and its rivals reach with the whole training set, and without any training.

    python benchmarks/evidence.py demo
    python benchmarks/evidence.py mobilenetv2 --data cifar10:DIR --weights FILE
    python benchmarks/evidence.py resnet20 --data cifar10:DIR --weights FILE --only none
    python benchmarks/evidence.py resnet56 --data cifar10:DIR --weights FILE --part latency
    python benchmarks/results_page.py

What is run is the list STUDY below, entry by entry; everything resumes, run it again until nothing is left. Each entry
leaves a file in benchmarks/results/evidence: the run's own result, with the answer to each test image, commit, processor and
versions, its recovery and its choice. Latencies of all files are then measured in one run, on each runtime.
`results_page.py` makes tables of them, `figures.py` pictures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.chosen_elsewhere import train_as_chosen, unknown_here  # noqa: E402
from benchmarks.in_turn import milliseconds  # noqa: E402
from benchmarks.missing import Missing, read_missing, write_missing  # noqa: E402
from benchmarks.seeds import seeds_of  # noqa: E402

from layermerge.baselines.channel_pruning import prune_channels  # noqa: E402
from layermerge.calibration.calibrate import calibrate  # noqa: E402
from layermerge.errors import LayerMergeError  # noqa: E402
from layermerge.files import SCHEMA, STRICT, read_document, write_document  # noqa: E402
from layermerge.models import demo  # noqa: E402
from layermerge.planning.candidate import Candidate  # noqa: E402
from layermerge.planning.plan import METHODS as MENUS  # noqa: E402
from layermerge.runs.context import Context  # noqa: E402
from layermerge.runs.environment import environment_now  # noqa: E402
from layermerge.runs.methods import criterion_of, run_control, run_method  # noqa: E402
from layermerge.runs.opening import open_run  # noqa: E402
from layermerge.runs.recipe import RunRecipe, read_recipe  # noqa: E402
from layermerge.runs.records import CONTROL, Environment, Report, Result  # noqa: E402
from layermerge.runs.steps import start_of  # noqa: E402
from layermerge.runtimes.exporting import export  # noqa: E402
from layermerge.runtimes.registry import make_runtime  # noqa: E402
from layermerge.surgery.merge import merge  # noqa: E402
from layermerge.surgery.rewrite import rewrite  # noqa: E402
from layermerge.tracing.trace import trace  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "evidence"
RUNTIMES = ("onnxruntime", "openvino")
CRITERIA = [
    (measure, ranking) for measure in ("magnitude", "geometric", "scale", "taylor") for ranking in ("layer", "network")
]
"""Of channel pruning; the one with the best held-out score without training is the rival's."""


@dataclass(frozen=True)
class Entry:
    """A network to be made: by a method, to a budget, trained for so many epochs of the whole training set."""

    method: str
    budget: str
    epochs: int
    teacher: bool = True
    """Whether it learns from the original's answers, too."""

    @property
    def label(self) -> str:
        if not self.epochs:
            return "none"
        return f"{self.epochs}-epochs" if self.teacher else f"{self.epochs}-epochs-no-teacher"

    @property
    def name(self) -> str:
        return f"{self.method}-{self.budget.replace('%', 'pct')}-{self.label}"


def untrained(*methods: str) -> list[Entry]:
    return [Entry(method, budget, 0) for budget in ("90%", "75%", "60%", "45%") for method in methods]


def trained(epochs: int, budgets: Sequence[str], method: str = "layermerge") -> list[Entry]:
    return [Entry(method, budget, epochs) for budget in budgets]


RECIPES = {"demo": demo.RECIPE} | {
    network: ROOT / "recipes" / f"cifar10_{network}.yaml" for network in ("resnet20", "mobilenetv2", "resnet56")
}
WANTED: dict[str, list[Entry]] = {
    "demo": [
        *untrained("layermerge", "channels"),
        *trained(10, ["75%", "60%", "45%"]),
        *trained(10, ["100%"], CONTROL),
        *trained(10, ["75%"], "layeronly"),
        *trained(10, ["60%"], "channels"),
        *trained(10, ["75%"], "sequential"),
        *trained(10, ["97%"], "depth"),
    ],
    "mobilenetv2": [
        *untrained("layermerge", "channels"),
        *trained(15, ["60%"]),
        *trained(15, ["100%"], CONTROL),
        *trained(5, ["75%", "60%", "45%"]),
        *trained(5, ["100%"], CONTROL),
        *trained(5, ["60%"], "depth"),
        *trained(5, ["60%"], "channels"),
        *trained(5, ["60%"], "sequential"),
        *trained(5, ["80%"], "layeronly"),
    ],
    "resnet20": [
        *untrained("layermerge", "channels"),
        *trained(5, ["94%", "75%", "55%"]),
        *trained(5, ["100%"], CONTROL),
        *trained(5, ["75%"], "layeronly"),
        *trained(5, ["75%"], "channels"),
        *trained(5, ["75%"], "sequential"),
        *trained(5, ["94%"], "depth"),
        *trained(1, ["75%"]),
        *trained(1, ["100%"], CONTROL),
        *trained(1, ["75%"], "layeronly"),
        *trained(1, ["75%"], "channels"),
        Entry("layermerge", "75%", 5, teacher=False),
        Entry(CONTROL, "100%", 5, teacher=False),
    ],
    "resnet56": [
        *untrained("layermerge", "channels"),
        *trained(5, ["70%", "65%", "55%"]),
        *trained(5, ["100%"], CONTROL),
        *trained(5, ["70%"], "layeronly"),
        *trained(5, ["70%"], "channels"),
        *trained(5, ["70%"], "sequential"),
        *trained(5, ["94%"], "depth"),
    ],
}
"""Depth and LayerOnly reach only so far: their budgets are the tightest round ones they do."""


def untrained_first(entries: Sequence[Entry]) -> list[Entry]:
    """Every network without training ahead of those that are trained: choices are measured while nothing else runs."""
    chosen = [Entry(entry.method, entry.budget, 0) for entry in entries if entry.method != CONTROL]
    return [*dict.fromkeys([*chosen, *entries])]


STUDY = {network: untrained_first(entries) for network, entries in WANTED.items()}
"""In the order in which it is run."""


@dataclass(frozen=True)
class Made:
    """NAME.json: what came of an entry: the run's result, how the held-out score came back by epoch, and what was chosen."""

    __pydantic_config__ = STRICT

    report: Report
    recovery: tuple[tuple[float, float], ...]
    seeds: dict[str, int]
    candidates: tuple[Candidate, ...] = ()
    """Of methods that solve over tables."""
    channel_ratio: float | None = None
    """Of channel pruning: the share of channels that went."""
    schema_version: Literal[2] = SCHEMA


@dataclass(frozen=True)
class Latencies:
    """latencies.json: all files of a network, timed in turn in one run on each runtime; milliseconds by file."""

    __pydantic_config__ = STRICT

    threads: int
    milliseconds: dict[str, dict[str, float]]
    """By runtime, then by the name of the entry; `original` is the network as it came."""
    environment: Environment
    schema_version: Literal[2] = SCHEMA


@dataclass(frozen=True)
class Criterion:
    """criterion.json: how channel pruning ranks, and the held-out score of every way that was tried, without training."""

    __pydantic_config__ = STRICT

    measure: str
    ranking: str
    tried: dict[str, float]
    environment: Environment
    schema_version: Literal[2] = SCHEMA


class Study:
    """One network's entries, in its run directory."""

    def __init__(self, network: str, given: dict[str, Any], place: Path) -> None:
        self.network, self.given, self.place = network, given, place
        self.results = RESULTS / network

    def recipe(self, **changes: Any) -> RunRecipe:
        return read_recipe(RECIPES[self.network], {**self.given, **changes})

    def context(self, entry: Entry) -> Context:
        how: dict[str, Any] = {"finetune": "none"}
        if entry.epochs:
            stated = self.recipe().finetune
            assert stated is not None, "the recipe says how networks are trained"
            changes = {"epochs": float(entry.epochs), "subset": None} | ({} if entry.teacher else {"distill": None})
            longer = stated.model_copy(update=changes)
            how = {"finetune": longer.model_dump(exclude_unset=True)}
        if entry.method.startswith("channels"):
            best = self.criterion()
            how |= {"channel_measure": best.measure, "channel_ranking": best.ranking}
        return open_run(self.recipe(label=entry.label, **how), self.place)

    def run(self, entries: Sequence[Entry]) -> None:
        for number, entry in enumerate(entries, start=1):
            path = self.results / f"{entry.name}.json"
            if path.is_file():
                continue
            print(f"-- {self.network}, {number} of {len(entries)}: {entry.name}", flush=True)
            context = self.context(entry)
            try:
                result, chosen = self.result(context, entry)
            except LayerMergeError as error:
                print(error, flush=True)
                write_missing(self.results, entry.name, error)
                continue
            curve = context.directory.variant(entry.method, entry.budget, entry.label).read_recovery()
            recovery = tuple((point.epoch, point.score) for point in curve)
            share = context.directory.read_channels(entry.budget) if entry.method == "channels" else None
            made = Made(result.report, recovery, seeds_of(context), chosen, share.ratio if share else None)
            write_document(path, made)
            print(result.report, flush=True)

    def result(self, context: Context, entry: Entry) -> tuple[Result, tuple[Candidate, ...]]:
        """What comes of an entry, and the candidates of methods that solve over tables.

        A network that was chosen on another machine is trained here as it was chosen there: its tables are not measured again.
        """
        if entry.method == CONTROL:
            return run_control(context), ()
        chosen = self.chosen_elsewhere(context, entry)
        if chosen is not None:
            return train_as_chosen(context, chosen.report, chosen.candidates), chosen.candidates
        result = run_method(context, entry.method, entry.budget)
        return result, tuple(result.solution.candidates) if result.solution is not None else ()

    def chosen_elsewhere(self, context: Context, entry: Entry) -> Made | None:
        """The same choice without training, where its file tells all of it and the run directory here knows none."""
        path = self.results / f"{Entry(entry.method, entry.budget, 0).name}.json"
        taken = entry.epochs and entry.method in MENUS and unknown_here(context, entry.method, entry.budget)
        return read_document(path, Made) if taken and path.is_file() else None

    def criterion(self, budget: str = "75%") -> Criterion:
        """Tried at one budget, without training, on held-out training images."""
        path = self.results / "criterion.json"
        if path.is_file():
            return read_document(path, Criterion)
        tried: dict[tuple[str, str], float] = {}
        for measure, ranking in CRITERIA:
            how = {
                "channel_measure": measure,
                "channel_ranking": ranking,
                "label": f"{measure}-{ranking}",
                "finetune": "none",
            }
            report = run_method(open_run(self.recipe(**how), self.place), "channels", budget).report
            tried[measure, ranking] = report.held_out
            print(f"channels by {measure}, ranked by {ranking}: {report.held_out:.4f}", flush=True)
        measure, ranking = max(tried, key=lambda way: tried[way])
        shown = {" by ".join(way): score for way, score in tried.items()}
        write_document(path, Criterion(measure, ranking, shown, environment_now()))
        return read_document(path, Criterion)

    def file_of(self, entry: Entry, made: Made) -> Path | None:
        """The file that came of an entry; where that is on another machine, one of the same shape, which takes as long."""
        context = self.context(entry)
        own = context.directory.variant(entry.method, entry.budget, entry.label).exported
        if own.is_file():
            return own
        if entry.method == CONTROL:
            return context.directory.original
        again = self.place / "again" / f"{entry.name}.onnx"
        if again.is_file():
            return again
        if made.candidates:
            net = calibrate(start_of(context, made.candidates), context.task, count=context.settings.calibrate)
        elif made.channel_ratio is not None:
            pruned = prune_channels(context.model, context.inputs, made.channel_ratio, criterion_of(context))
            net = rewrite(trace(pruned, context.inputs), [])
        else:
            return None
        export(merge(net), again, context.inputs)
        return again

    def latency(self) -> None:
        """All files that there are, on each runtime, in turn within one run."""
        context = open_run(self.recipe(), self.place)
        inputs = context.trace.inputs.resized(context.settings.batch_size)
        files = {"original": context.directory.original}
        for entry, made in results_of(self.network):
            if (file := self.file_of(entry, made)) is not None:
                files[entry.name] = file
            else:
                print(f"{entry.name} is not timed: its file was left on another machine", flush=True)
        found: dict[str, dict[str, float]] = {}
        for name in RUNTIMES:
            found[name] = milliseconds(make_runtime(name), files, inputs)
            print(f"{name}: {len(files)} files timed", flush=True)
        write_document(self.results / "latencies.json", Latencies(context.settings.threads, found, environment_now()))


def results_of(network: str) -> Iterator[tuple[Entry, Made]]:
    """What is there, in the study's order."""
    for entry in STUDY[network]:
        if (path := RESULTS / network / f"{entry.name}.json").is_file():
            yield entry, read_document(path, Made)


def missing_of(network: str) -> Iterator[tuple[Entry, Missing]]:
    """What a method could not give, in the study's order."""
    for entry in STUDY[network]:
        if (missing := read_missing(RESULTS / network, entry.name)) is not None:
            yield entry, missing


def latencies_of(network: str) -> Latencies | None:
    path = RESULTS / network / "latencies.json"
    return read_document(path, Latencies) if path.is_file() else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=STUDY)
    parser.add_argument("--data", help="cifar10:DIR; the demo has its own")
    parser.add_argument("--weights", help="the network's pretrained weights; the demo has its own")
    parser.add_argument("--run-dir", type=Path, help="where tables and networks go; runs/evidence/NETWORK by default")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of torch, while networks are trained")
    parser.add_argument("--only", action="append", help="entries with this in their name; repeatable")
    parser.add_argument("--part", choices=["networks", "latency"], action="append")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    stated = {"data.source": options.data, "weights": options.weights, "workers": options.workers}
    given = {key: value for key, value in stated.items() if value is not None}
    study = Study(options.network, given, options.run_dir or ROOT / "runs" / "evidence" / options.network)
    parts = options.part or ["networks", "latency"]
    if "networks" in parts:
        wanted = STUDY[options.network]
        study.run([entry for entry in wanted if not options.only or any(part in entry.name for part in options.only)])
    if "latency" in parts:
        study.latency()


if __name__ == "__main__":
    main()
