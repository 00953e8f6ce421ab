"""The verb export: a network as a file that other runtimes read, with its figures where it belongs to a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from layermerge.cli.app import JsonOption, app, print_json
from layermerge.cli.flags import Flags, RunArgument, takes

if TYPE_CHECKING:
    from layermerge.quantization.figures import QuantizedFigures
    from layermerge.runs.networks import FoundNetwork
    from layermerge.runs.records import Report


@app.command()
@takes("model", "weights", "input", "free_size", "data", "images", "budget", "method", "label", "license")
def export(
    run_dir: RunArgument,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A .onnx, .pt2 or .safetensors file; model.onnx beside the network by default."
        ),
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Quantise to INT8 on the run's images; an .onnx file.")] = False,
    float16: Annotated[
        bool, typer.Option("--float16", help="Weights of 16 bits, for OpenVINO; an .onnx file.")
    ] = False,
    as_json: JsonOption = False,
    *,
    flags: Flags,
) -> None:
    """Export a network, merged first if it is not, as a file that other runtimes read.

    RUN_DIR is a run, whose network for a budget is meant, or a directory that `save` wrote. In a run, what is exported is
    also measured and scored, for the report. INT8 is measured and scored alongside float32; where it is slower here, the output
    says so. A run whose runtime serves INT8 or float16 exports that.

    Example: layermerge export runs/a --budget 60% --to fast.onnx
    """
    from layermerge.cli.cards import leave_card
    from layermerge.cli.summary import on_run, show_next
    from layermerge.files import write_files
    from layermerge.runs.networks import find_network, merged
    from layermerge.runs.steps import count_convs
    from layermerge.runtimes.exporting import export as write_export
    from layermerge.stages import expect

    _require_one_form(to, int8, float16)
    found = find_network(run_dir, flags.recipe(run_dir))
    if found.variant is not None and not int8 and not float16 and (to is None or to.suffix == ".onnx"):
        int8, float16 = found.recipe.runtime.endswith("-int8"), found.recipe.serves_float16
    place = found.variant or found.place
    expect(("network", "export"))
    served = found.variant is not None and found.recipe.data is not None
    fast, facts = _served(run_dir, found, int8=int8) if served else (merged(found.load()), _Figures())
    path = to or (place.quantised if int8 else place.float16 if float16 else place.exported)
    made = place.quantised if int8 else place.exported
    if int8 and not facts.document:
        facts = _quantised(found, fast, path)
    elif float16:
        _write_float16(fast, path, found.place.read_plan().example_inputs)
    elif facts.document and made.is_file() and path.suffix == made.suffix:
        if path != made:
            write_files({path: lambda file: _copy(made, file)})
    else:
        write_export(fast, path, found.place.read_plan().example_inputs)
    leave_card(run_dir, found)
    size = path.stat().st_size
    if as_json:
        print_json({"convs": count_convs(fast), "exported_to": str(path), "bytes": size, **facts.document})
        return
    facts.show(f"Exported network of {run_dir}", count_convs(fast), size, path)
    page = [(on_run("report", run_dir), "the page about it")] if found.variant is not None else []
    show_next((str(path), "the file to serve"), *page)


@dataclass(frozen=True)
class _Figures:
    """What was measured of an exported network, for JSON and for people."""

    document: dict[str, Any] = field(default_factory=dict)
    report: Report | None = None
    int8: QuantizedFigures | None = None

    def show(self, title: str, convs: int, size: int, path: Path) -> None:
        from layermerge.cli.summary import result_lines, show_int8, show_summary
        from layermerge.reporting.numbers import size as size_text

        lines = result_lines(self.report) if self.report else [("convolutions", "", str(convs), "")]
        headings = ("before", "after") if self.report else ("", "")
        show_summary(title, [*lines, ("file", "", size_text(size), path.name)], headings)
        if self.int8:
            print()
            show_int8("In float32 and in INT8", self.int8)


def _require_one_form(to: Path | None, int8: bool, float16: bool) -> None:
    from layermerge.errors import ArtifactError

    if int8 and float16:
        raise ArtifactError("--int8 and --float16 are two forms of a file; give one of them")
    if (int8 or float16) and to is not None and to.suffix != ".onnx":
        raise ArtifactError(f"cannot write INT8 or float16 to '{to.name}'; give a name that ends in .onnx")


def _write_float16(fast: Any, path: Path, inputs: Any) -> None:
    """By way of a float32 file, which is checked."""
    import tempfile

    from layermerge.files import write_files
    from layermerge.runtimes.exporting import export as write_export
    from layermerge.runtimes.float16_file import write_float16

    with tempfile.TemporaryDirectory() as folder:
        float32 = write_export(fast, Path(folder) / "float32.onnx", inputs)
        write_files({path: lambda file: write_float16(float32, file)})


def _copy(source: Path, target: Path) -> None:
    target.write_bytes(source.read_bytes())


def _served(run_dir: Path, found: FoundNetwork, *, int8: bool) -> tuple[Any, _Figures]:
    """What is exported, measured and scored as compress does, into result.json; INT8 into int8.json."""
    from layermerge.runs.forms import serve_int8
    from layermerge.runs.networks import merged
    from layermerge.runs.opening import open_run
    from layermerge.runs.steps import serve, stamp_of, start_of
    from layermerge.stages import stage

    assert found.variant is not None
    context = open_run(found.recipe, run_dir, found.recipe.method)
    fast = merged(found.load(context.model))
    recipe, variant = context.settings.finetune, found.variant.read_variant()
    stamp = stamp_of(context, start_of(context, fast.surgery.candidates), recipe)
    with stage("export", "export, measure and score it", found.variant.result):
        result = serve(context, variant, fast, recipe, stamp).report
        quantised = serve_int8(context, found.variant, fast, result) if int8 else None
    facts = {"measured_ms": result.measured_ms, "budget_kept": result.budget_kept, "score": result.score.value}
    if quantised is None:
        return fast, _Figures(facts, result)
    document = {
        "runtime": quantised.runtime,
        "float32_ms": quantised.float32_ms,
        "int8_ms": quantised.int8_ms,
        "instructions": quantised.instructions,
        "scheme": quantised.scheme,
        "float32_score": quantised.float32_score.value,
        "int8_score": quantised.score.value,
        "loss": quantised.loss,
        "plain_loss": quantised.plain_loss,
        "left_in_float32": list(quantised.left_in_float32),
        **_slower(quantised.faster, quantised.instructions),
    }
    return fast, _Figures(document, result, quantised)


def _slower(faster: bool, instructions: str) -> dict[str, str]:
    return {} if faster else {"note": f"INT8 is SLOWER than float32 on this machine ({instructions})"}


def _quantised(found: FoundNetwork, fast: Any, path: Path) -> _Figures:
    """An INT8 file of a network that stands for itself, on the images that the flags or the recipe name."""
    from dataclasses import asdict

    from layermerge.errors import ArtifactError
    from layermerge.quantization.quantize import quantize
    from layermerge.runs.opening import load_network, open_task
    from layermerge.stages import stage

    if found.recipe.data is None:
        raise ArtifactError("--int8 needs images to quantise on; give --images DIR or --data SOURCE")
    loaded = load_network(found.recipe)
    task = open_task(found.recipe, loaded).for_original(loaded.module)
    with stage("export", "quantise, measure and score it"):
        made = quantize(fast, task, path)
    facts = {name: value for name, value in asdict(made).items() if name != "path"}
    return _Figures(facts | _slower(made.faster, made.instructions), None, made)
