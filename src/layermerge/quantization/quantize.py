"""Quantize: a float32 network in, an INT8 file out, whose outputs on held-out images are near those of the float32 one.

In: a module or an ONNX file, unlabelled images. Out: an ONNX file with QuantizeLinear and DequantizeLinear (QDQ), and a record
of what was done to it. Maps between convs are equalised and biases corrected where that helps; layers that hurt most are left
in float32 until the loss is below a bound. Guarantees: the loss on images that nothing was taken from is below the bound;
nothing is written otherwise.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from torch import nn

from layermerge.arguments import Count, FilePath, Must, checked
from layermerge.calibration.sample import Sources
from layermerge.errors import ArtifactError
from layermerge.files import write_files
from layermerge.quantization.biases import shifts_of, with_shifts_taken_back
from layermerge.quantization.equalising import equalised
from layermerge.quantization.examples import Feed
from layermerge.quantization.figures import QuantizedFigures
from layermerge.quantization.leaving_out import layer_names, leave_out
from layermerge.quantization.network import float32_session
from layermerge.quantization.nncf_library import in_integers_by_nncf, nncf_library
from layermerge.quantization.sources import Source, read_source
from layermerge.quantization.tensors import Array, relative_loss
from layermerge.runtimes.base import Runtime
from layermerge.runtimes.instructions import Instructions, instructions_named
from layermerge.runtimes.int8_file import WEIGHTED, Model, in_integers, observed_ranges
from layermerge.runtimes.onnx_file import OnnxRuntimeBase
from layermerge.runtimes.registry import make_runtime
from layermerge.tasks.base import Task, held_out_score
from layermerge.tracing.inputs import Inputs

Loss = Annotated[float, Must(lambda value: 0 < value < 1, "a number between 0 and 1, such as 0.01")]
"""A share of the square of a network's outputs."""
_SHOWN = 4
"""Layers left in float32 that a line names."""


@dataclass(frozen=True, kw_only=True)
class Quantized(QuantizedFigures):
    """The quantised network: the file, what was done, its loss, and its latency alongside float32's."""

    path: Path
    float32_score: float | None = None
    """The task's score on held-out images, where a task gave the images."""
    int8_score: float | None = None

    def __str__(self) -> str:
        names = ", ".join(self.left_in_float32[:_SHOWN]) + ", ..." * (len(self.left_in_float32) > _SHOWN)
        left = f", {len(self.left_in_float32)} left in float32 ({names})" if self.left_in_float32 else ""
        scores = "" if self.int8_score is None else f", score {self.float32_score:.4f} -> {self.int8_score:.4f}"
        slower = "" if self.faster else f": SLOWER than float32 on this machine ({self.instructions})"
        return (
            f"{self.scheme} for {self.instructions}: {self.layers} layers{left}; float32 {self.float32_ms:.3f} -> INT8 "
            f"{self.int8_ms:.3f} ms on {self.runtime}{slower}; loss {self.loss:.2g} (without remedies {self.plain_loss:.2g})"
            f"{scores}"
        )


@checked(ArtifactError)
def quantize(
    source: nn.Module | FilePath,
    images: Sources | FilePath,
    to: FilePath,
    *,
    count: Count = 512,
    batch_size: Count = 1,
    most_loss: Loss = 0.01,
    remedies: bool = True,
    runtime: str | Runtime = "onnxruntime",
    instructions: str | None = None,
    library: Literal["onnxruntime", "nncf"] = "onnxruntime",
) -> Quantized:
    """Writes a network as an INT8 ONNX file, quantised on unlabelled images; onnxruntime and OpenVINO read it.

    `source` is a module that is already merged, or an ONNX file. `images` are what `calibrate` takes, or a folder, whose
    pixels are scaled to the network's size and to numbers from 0 to 1; the first `count` are used, a fifth of them held out.
    Where the squared difference of the held-out outputs from float32's is more than `most_loss` of their square, layers are
    left in float32. `remedies=False` is plain quantisation, without a check of the loss. `runtime` computes and times both,
    at `batch_size`. `instructions` names another processor's, such as avx2; by default those of this one decide how many bits
    weights have. `library` makes the integers; nncf is an extra, for OpenVINO, and corrects biases itself. Costs a few passes
    over the images, and one for each layer where layers have to be left out.
    """
    target = Path(to)
    if target.suffix != ".onnx":
        raise ArtifactError(f"cannot quantise to '{target.name}'; give a name that ends in .onnx")
    chosen, processor = _float32_runtime(runtime), instructions_named(instructions)
    if library == "nncf":
        nncf_library()  # says first what is not installed
    found = read_source(source, images, count)
    work = _Quantising(found, chosen, processor, most_loss, by_nncf=library == "nncf")
    made = work.remedied() if remedies else work.plain
    with tempfile.TemporaryDirectory() as folder:
        float32 = Path(folder) / "float32.onnx"
        float32.write_bytes(found.model.SerializeToString())
        written = Path(folder) / "int8.onnx"
        written.write_bytes(made.integers.SerializeToString())
        float32_ms, int8_ms = _latencies(chosen, (float32, written), found.example.resized(batch_size))
        scores = _scores(images, chosen, (float32, written)) if isinstance(images, Task) else (None, None)
        write_files({target: lambda path: _copied(written, path)})
    return Quantized(
        path=target,
        scheme=processor.scheme,
        instructions=str(processor),
        layers=sum(node.op_type in WEIGHTED for node in found.model.graph.node),
        left_in_float32=layer_names(found.model, made.left_out),
        equalised=made.equalised,
        biases_corrected=bool(made.shifts),
        loss=made.loss,
        plain_loss=work.plain.loss,
        runtime=chosen.name,
        float32_ms=float32_ms,
        int8_ms=int8_ms,
        float32_score=scores[0],
        int8_score=scores[1],
    )


@dataclass(frozen=True)
class _Made:
    """A network in integers, what it was made of, and how good it is."""

    float32: Model
    """Equalised or not; biases as they were."""
    ranges: Any
    integers: Model
    loss: float
    equalised: int = 0
    shifts: Mapping[str, Array] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


class _Quantising:
    """Remedies one after the other; one that does not help on held-out images is left out."""

    def __init__(
        self,
        source: Source,
        runtime: OnnxRuntimeBase,
        processor: Instructions,
        most_loss: float,
        *,
        by_nncf: bool = False,
    ) -> None:
        self.model, self.examples, self.by_nncf = source.model, source.examples, by_nncf
        self.runtime, self.processor, self.most_loss = runtime, processor, most_loss

    @cached_property
    def plain(self) -> _Made:
        return self._quantised(self.model)

    def remedied(self) -> _Made:
        tried = [self.plain, self._corrected(self.plain)]
        even, number = equalised(self.model, self.examples.fitted)
        if number:
            made = replace(self._quantised(even), equalised=number)
            tried += [made, self._corrected(made)]
        best = min(tried, key=lambda made: made.loss)

        def loss_without(nodes: Collection[str]) -> float:
            return self._without(best, nodes).loss

        left = leave_out(best.float32, loss_without, best.loss, self.most_loss)
        return self._without(best, left) if left else best

    def _quantised(self, model: Model) -> _Made:
        ranges = None if self.by_nncf else observed_ranges(model, self.examples.fitted)
        integers = self._integers(model, ranges, ())
        return _Made(model, ranges, integers, self._loss(integers))

    def _integers(self, model: Model, ranges: Any, left_out: Collection[str]) -> Model:
        if self.by_nncf:
            return in_integers_by_nncf(model, self.examples.fitted, self.processor, left_out)
        return in_integers(model, ranges, self.processor, left_out=left_out)

    def _corrected(self, made: _Made) -> _Made:
        if self.by_nncf:
            return made
        shifts = shifts_of(made.float32, made.integers, self.examples.fitted)
        return self._without(replace(made, shifts=shifts), ())

    def _without(self, made: _Made, nodes: Collection[str]) -> _Made:
        """With these nodes in float32, whose weights are not rounded and shift nothing."""
        shifts = {name: shift for name, shift in made.shifts.items() if name not in nodes}
        model = with_shifts_taken_back(made.float32, shifts) if shifts else made.float32
        integers = self._integers(model, made.ranges, nodes)
        return replace(made, integers=integers, loss=self._loss(integers), left_out=tuple(nodes))

    def _loss(self, integers: Model) -> float:
        return relative_loss(_outputs(self.runtime, integers, self.examples.held_out), self._reference)

    @cached_property
    def _reference(self) -> list[Array]:
        session = float32_session(self.model)
        return _joined([session.run(None, feed) for feed in self.examples.held_out])


def _outputs(runtime: OnnxRuntimeBase, model: Model, feeds: Sequence[Feed]) -> list[Array]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trial.onnx"
        path.write_bytes(model.SerializeToString())
        _, session = runtime.session(path)
        return _joined([[output.copy() for output in session(feed)] for feed in feeds])


def _joined(batches: Sequence[Sequence[Array]]) -> list[Array]:
    return [np.concatenate(column) for column in zip(*batches, strict=True)]


def _latencies(runtime: OnnxRuntimeBase, files: tuple[Path, Path], inputs: Inputs) -> tuple[float, float]:
    """Side by side."""
    runs = {file.name: runtime.prepare_file(file, inputs) for file in files}
    taken = runtime.time(runs, runtime.clocks.whole)
    return taken[files[0].name].value_ms, taken[files[1].name].value_ms


def _scores(task: Task, runtime: OnnxRuntimeBase, files: tuple[Path, Path]) -> tuple[float, float]:
    first, second = (held_out_score(task, runtime.serve_file(file)) for file in files)
    return first, second


def _float32_runtime(given: str | Runtime) -> OnnxRuntimeBase:
    """The runtime that computes both files: that of the same library which takes either."""
    runtime = make_runtime(given)
    if not isinstance(runtime, OnnxRuntimeBase):
        raise ArtifactError(f"runtime '{runtime.name}' does not read ONNX files; give onnxruntime or openvino")
    return runtime.for_float32()


def _copied(source: Path, target: Path) -> None:
    target.write_bytes(source.read_bytes())
