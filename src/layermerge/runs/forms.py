"""Forms: the file that a run serves, in the numbers that its runtime computes with: float32, float16 or INT8."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from torch import nn

from layermerge.files import document_digest, write_document, write_files
from layermerge.progress import Progress
from layermerge.quantization.figures import QuantizedFigures
from layermerge.quantization.quantize import Quantized, quantize
from layermerge.runs.context import Context
from layermerge.runs.directory import VariantDirectory
from layermerge.runs.records import Int8Result, Report
from layermerge.runtimes.base import Runtime, RuntimeSettings
from layermerge.runtimes.float16_file import write_float16
from layermerge.runtimes.instructions import instructions_here
from layermerge.runtimes.onnx_file import InParts, OnnxRuntimeBase
from layermerge.runtimes.onnx_runtime import OnnxRuntime
from layermerge.tasks.base import Network
from layermerge.tracing.file_interface import file_interface_of


def serves_integers(context: Context) -> bool:
    return isinstance(context.runtime, OnnxRuntimeBase) and context.runtime.integers


def served_file(context: Context, place: VariantDirectory) -> Path:
    """The file of a merged network that the run's runtime serves."""
    if serves_integers(context):
        return place.quantised
    return place.float16 if context.settings.serves_float16 else place.exported


def scored_file(context: Context, runtime: Runtime, file: Path) -> Network:
    """A file as a network that takes any number of images, part by part where its batch is fixed."""
    network, known = runtime.serve_file(file), file_interface_of(context.trace.module)
    return network if known is None or known.batch is None else InParts(network, known.batch)


def write_served_file(context: Context, place: VariantDirectory) -> Quantized | None:
    """Makes the file that is served of the float32 one next to it; what came of quantising, where that is INT8."""
    if serves_integers(context):
        return _quantised(context, place, place.exported)
    if context.settings.serves_float16:
        write_files({place.float16: lambda file: write_float16(place.exported, file)})
    return None


def serve_int8(context: Context, place: VariantDirectory, merged: nn.Module, report: Report) -> Int8Result:
    """The merged network as an INT8 file, measured and scored alongside float32; skipped where that is there."""
    known = place.read_int8()
    if known is not None and known.stamp == _stamp(context, report):
        return known
    made = _quantised(context, place, place.exported if place.exported.is_file() else merged)
    return note_int8(context, place, made, report)


def note_int8(context: Context, place: VariantDirectory, made: Quantized, report: Report) -> Int8Result:
    """Scores both files and writes the figures down, latency on the scale of the run's."""
    runtime = _library(context)
    scale = report.measured_ms / (made.int8_ms if serves_integers(context) else made.float32_ms)
    float32 = scored_file(context, runtime, place.exported) if place.exported.is_file() else None
    integers = serves_integers(context)
    known = {field.name: getattr(made, field.name) for field in fields(QuantizedFigures)}
    scaled = {"float32_ms": made.float32_ms * scale, "int8_ms": made.int8_ms * scale}
    result = Int8Result(
        stamp=_stamp(context, report),
        float32_score=context.task.test(float32) if integers and float32 else report.score,
        score=report.score if integers else context.task.test(scored_file(context, runtime, place.quantised)),
        **known | scaled,
    )
    write_document(place.int8, result)
    return result


def _quantised(context: Context, place: VariantDirectory, source: Path | nn.Module) -> Quantized:
    with Progress("quantising", total=1) as progress:
        made = quantize(
            source, context.task, place.quantised, runtime=_library(context), batch_size=context.settings.batch_size
        )
        progress.advance()
    return made


def _library(context: Context) -> Runtime:
    """Runs either file: the run's own runtime where that reads files, or else onnxruntime."""
    runtime = context.runtime
    if isinstance(runtime, OnnxRuntimeBase):
        return runtime.for_float32()
    return OnnxRuntime(RuntimeSettings(threads=context.settings.threads))


def _stamp(context: Context, report: Report) -> str:
    return document_digest([report.stamp, _library(context).name, str(instructions_here())])
