"""The run directory: the only place that knows which file is where. Every artifact has a typed way in and out.

    RUN/recipe.yaml, plan.json, original.onnx, branches/, answers/, original.json, latency.jsonl, importance.jsonl,
        report.html
    RUN/METHOD/BUDGET/choice.json, channels.json
    RUN/METHOD/BUDGET/LABEL/variant.json, calibration.json, result.json, int8.json, README.md, model.onnx,
        model.int8.onnx, model.float16.onnx, what `finetune` and `save` write, calibrated/ and unmerged/

Names of folders are for people: which method, budget and label a file belongs to is said in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torch import nn

from layermerge.errors import ArtifactError
from layermerge.files import digest, document_text, read_document, text_writer, write_document, write_files
from layermerge.planning.plan import Plan
from layermerge.runs.plan_file import PlanFile
from layermerge.runs.records import (
    Calibration,
    ChannelShare,
    Choice,
    Int8Result,
    OriginalScore,
    Report,
    SavedNetwork,
    Variant,
)
from layermerge.runtimes.writing import for_serving, write_onnx
from layermerge.surgery.merge import MergedModule
from layermerge.tables.branches import Branch
from layermerge.tables.latency import LatencyTable
from layermerge.tables.table import Table
from layermerge.tracing.fingerprint import fingerprint
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.structure import Structure
from layermerge.tuning.recovery import JSONL as RECOVERY
from layermerge.tuning.recovery import Epoch, read_recovery


@dataclass(frozen=True)
class NetworkDirectory:
    """A saved network: what `save` writes and `load` reads. The three files belong together."""

    path: Path

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def solution(self) -> Path:
        return self.path / "solution.json"

    @property
    def weights(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def exported(self) -> Path:
        """The network as a file for runtimes."""
        return self.path / "model.onnx"

    @property
    def program(self) -> Path:
        """The network as torch.export writes it."""
        return self.path / "model.pt2"

    @property
    def quantised(self) -> Path:
        """The same in integers."""
        return self.path / "model.int8.onnx"

    @property
    def float16(self) -> Path:
        return self.path / "model.float16.onnx"

    @property
    def merged(self) -> NetworkDirectory:
        """Where a network without a run is saved once it is merged."""
        return NetworkDirectory(self.path / "merged")

    @property
    def holds_network(self) -> bool:
        return self.solution.is_file() and self.weights.is_file()

    def read_plan(self) -> PlanFile:
        return read_document(self.plan, PlanFile)

    def read_solution(self) -> SavedNetwork:
        return read_document(self.solution, SavedNetwork)


@dataclass(frozen=True)
class VariantDirectory(NetworkDirectory):
    """One way of fine-tuning one choice: the training under way, the merged network, the file to serve, its figures."""

    @property
    def variant(self) -> Path:
        return self.path / "variant.json"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def unmerged(self) -> NetworkDirectory:
        """The fine-tuned network before it was merged."""
        return NetworkDirectory(self.path / "unmerged")

    @property
    def calibrated(self) -> NetworkDirectory:
        """The network that fine-tuning begins with, fitted to the original."""
        return NetworkDirectory(self.path / "calibrated")

    @property
    def calibration(self) -> Path:
        return self.path / "calibration.json"

    def network_files(self) -> list[Path]:
        """The files of the network, in the forms that it was written in."""
        return sorted(path for path in self.path.glob("model*") if path.suffix in (".onnx", ".pt2", ".safetensors"))

    def read_calibration(self) -> Calibration | None:
        return read_document(self.calibration, Calibration) if self.calibration.is_file() else None

    def known_calibration(self, stamp: str) -> Calibration | None:
        known = self.read_calibration()
        return known if known is not None and known.stamp == stamp and self.calibrated.holds_network else None

    def read_calibrated(self) -> float | None:
        """The score before any training, where the network was calibrated."""
        calibration = self.read_calibration()
        return calibration.held_out if calibration else None

    def second_stage(self, method: str) -> RunDirectory:
        """Where a method of two stages continues from this network."""
        return RunDirectory(self.path / f"then-{method}")

    def read_variant(self) -> Variant:
        return read_document(self.variant, Variant)

    def read_result(self) -> Report | None:
        return read_document(self.result, Report) if self.result.is_file() else None

    @property
    def card(self) -> Path:
        """The model card."""
        return self.path / "README.md"

    @property
    def int8(self) -> Path:
        return self.path / "int8.json"

    def read_int8(self) -> Int8Result | None:
        """Figures of the INT8 file, where there is one."""
        found = self.int8.is_file() and self.quantised.is_file()
        return read_document(self.int8, Int8Result) if found else None

    @property
    def recovery(self) -> Path:
        return self.path / RECOVERY

    def read_recovery(self) -> list[Epoch]:
        return read_recovery(self.path) if self.recovery.is_file() else []


@dataclass(frozen=True)
class RunDirectory(NetworkDirectory):
    """A run: its recipe, its plan and tables, and below them what was chosen and what came of it."""

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.yaml"

    @property
    def original(self) -> Path:
        """The untouched network, norms folded, as a file."""
        return self.path / "original.onnx"

    def branch(self, branch: Branch) -> Path:
        """A branch of the untouched network between two neighbours, as a file."""
        return self.path / "branches" / f"{branch.work}.onnx"

    @property
    def answers(self) -> Path:
        """What the original says to training batches, for all that is distilled from it."""
        return self.path / "answers"

    @property
    def original_score(self) -> Path:
        return self.path / "original.json"

    @property
    def latency(self) -> Path:
        return self.path / "latency.jsonl"

    @property
    def importance(self) -> Path:
        return self.path / "importance.jsonl"

    @property
    def page(self) -> Path:
        return self.path / "report.html"

    def comparison(self, label: str, suffix: str) -> Path:
        return self.path / f"comparison-{label}{suffix}"

    def picture(self, kind: str, label: str, suffix: str) -> Path:
        return self.path / f"{kind}-{label}{suffix}"

    # -- below it

    def choice(self, method: str, budget: str) -> Path:
        return self._chosen(method, budget) / "choice.json"

    def channels(self, budget: str) -> Path:
        return self._chosen("channels", budget) / "channels.json"

    def variant(self, method: str, budget: str, label: str) -> VariantDirectory:
        return VariantDirectory(self._chosen(method, budget) / label)

    def choices(self) -> list[Choice]:
        """All that were made, in the order of their folders."""
        return [read_document(path, Choice) for path in sorted(self.path.glob("*/*/choice.json"))]

    def variants(self) -> Iterator[VariantDirectory]:
        """All that fine-tuning began with, finished or not."""
        for path in sorted(self.path.glob("*/*/*/variant.json")):
            yield VariantDirectory(path.parent)

    def _chosen(self, method: str, budget: str) -> Path:
        return self.path / method / budget.strip().replace("%", "pct")

    # -- plan and tables

    def write_plan(
        self,
        plan: PlanFile,
        untouched: MergedModule | None = None,
        inputs: Inputs | None = None,
        cut_out: Callable[[Branch], nn.Module] | None = None,
    ) -> PlanFile:
        """Writes the plan, and next to it the untouched network and its branches, where they are given as modules.

        The plan says which file the network is; branches are named by what they compute.
        """
        if untouched is None or inputs is None or cut_out is None:
            write_document(self.plan, plan)
            return plan
        served, exported = for_serving(untouched), dict[str, str]()

        def write_original(path: Path) -> None:
            write_onnx(served, path, inputs)
            exported["digest"] = digest(path.read_bytes())

        def write_described(path: Path) -> None:
            path.write_text(document_text(replace(plan, original=exported["digest"])), encoding="utf-8")

        for branch in plan.branches:
            if not self.branch(branch).is_file():
                write_files({self.branch(branch): partial(_write_branch, cut_out(branch), branch)})
        write_files({self.original: write_original, self.plan: write_described})
        return replace(plan, original=exported["digest"])

    def known_plan(self) -> PlanFile | None:
        return self.read_plan() if self.plan.is_file() else None

    def holds_original(self, plan: PlanFile) -> bool:
        """Whether the untouched network's file is there, and the one that the plan was written with; so with its branches."""
        branches = all(self.branch(branch).is_file() for branch in plan.branches)
        return branches and self.original.is_file() and plan.original == digest(self.original.read_bytes())

    def require_original(self, plan: PlanFile) -> Path:
        """The untouched network's file, which must be the one that the plan was written with."""
        for path in (self.original, *map(self.branch, plan.branches)):
            if not path.is_file():
                raise ArtifactError(f"'{path}' does not exist; copy it along with '{self.plan.name}'")
        if not self.holds_original(plan):
            raise ArtifactError(
                f"'{self.original}' is not the network that '{self.plan}' was written with; copy both, or plan again"
            )
        return self.original

    def read_latency(self, plan: PlanFile | None = None) -> LatencyTable:
        known = plan or self.read_plan()
        if missing := [candidate.key for candidate in known.candidates if candidate.key not in known.workloads]:
            raise ArtifactError(f"'{self.plan}' does not list the workload of candidate '{missing[0]}'; plan again")
        return LatencyTable(known.plan, known.workloads, self._table(self.latency, known), known.branches)

    def read_importance(self, plan: PlanFile | None = None) -> Table:
        return self._table(self.importance, plan or self.read_plan())

    def _table(self, path: Path, plan: PlanFile) -> Table:
        table = Table.read(path)
        if table.provenance.get("network", plan.fingerprint) != plan.fingerprint:
            raise ArtifactError(f"'{path}' was measured for another network than '{self.plan}'")
        return table

    def require_same_network(self, structure: Structure, inputs: Inputs, name: str) -> None:
        """Refuses to continue with the plan and tables of another network, or of another input size."""
        known = self.known_plan()
        if known is None:
            return
        own = PlanFile.of(inputs, Plan(structure.layers, (), (), known.rules, known.method, fingerprint(structure)))
        if known.is_of_network(own):
            return
        if known.free_size != own.free_size:
            kept = "keeps height and width free" if known.free_size else "fixes height and width"
            raise ArtifactError(
                f"'{self.path}' holds a run that {kept}; give another run directory, or trace as it did"
            )
        there, here = (" and ".join("x".join(map(str, shape)) for shape in each.shapes) for each in (known, own))
        sizes = f" (traced with {there} there, {here} now)" if there != here else ""
        raise ArtifactError(
            f"'{self.path}' holds the run of another network than this {name}{sizes}; give another run directory"
        )

    # -- small records that are made once

    def known_choice(self, method: str, budget: str, stamp: str) -> Choice | None:
        path = self.choice(method, budget)
        known = read_document(path, Choice) if path.is_file() else None
        return known if known is not None and known.stamp == stamp else None

    def read_channels(self, budget: str) -> ChannelShare:
        return read_document(self.channels(budget), ChannelShare)

    def known_channels(self, budget: str, stamp: str) -> ChannelShare | None:
        known = self.read_channels(budget) if self.channels(budget).is_file() else None
        return known if known is not None and known.stamp == stamp else None

    def known_score(self, stamp: str | None = None) -> OriginalScore | None:
        known = read_document(self.original_score, OriginalScore) if self.original_score.is_file() else None
        return known if known is not None and stamp in (None, known.stamp) else None

    def write_choice(self, choice: Choice) -> None:
        write_document(self.choice(choice.method, choice.budget), choice)

    def write_result(self, place: VariantDirectory, report: Report, score: OriginalScore) -> None:
        """With the original's score, on which the first result rests."""
        texts = {self.original_score: document_text(score), place.result: document_text(report)}
        write_files({path: text_writer(text) for path, text in texts.items()})


def _write_branch(module: nn.Module, branch: Branch, path: Path) -> None:
    write_onnx(module, path, branch.inputs(2))
