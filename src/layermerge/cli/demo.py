"""The verb demo: compress, on a network and images that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layermerge.cli.app import JsonOption, app, print_json
from layermerge.cli.flags import Flags

_RUNTIME = "onnxruntime"


@app.command()
def demo(
    budget: Annotated[str, typer.Option(help="60% or 0.6, 1.8x or 12ms.")] = "60%",
    method: Annotated[str, typer.Option(help="layermerge, depth, layeronly, sequential, channels, ...")] = "layermerge",
    runtime: Annotated[str, typer.Option(help="torch, onnxruntime, openvino, ...")] = _RUNTIME,
    finetune: Annotated[
        str | None, typer.Option(metavar="none", help="none: no training, the network stays as calibrated.")
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", metavar="DIR", help="Where results go; runs/demo, or runs/demo-RUNTIME.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compress a small network that comes with the package: plan, tables, choice, fine-tuning, merge, export, report.

    Example: layermerge demo --budget 50%
    """
    from layermerge.cli.summary import quoted, show_next, show_result
    from layermerge.files import plain
    from layermerge.models import demo as shipped
    from layermerge.runs.compress import compress_run
    from layermerge.runs.methods import require_known
    from layermerge.runs.opening import open_run
    from layermerge.stages import expect

    text = require_known(method, budget)
    # A run directory holds the tables of one runtime.
    place = run_dir or Path("runs") / ("demo" if runtime == _RUNTIME else f"demo-{runtime}")
    changes = {"budgets": [text], "method": method, "runtime": runtime}
    changes |= {} if finetune is None else {"finetune": finetune, "label": "untrained"}
    expect(("network",))
    context = open_run(Flags(changes).recipe(place, shipped.RECIPE), place)
    result = compress_run(context, text)
    if as_json:
        print_json(plain(result.report) | {"directory": str(result.directory), "page": str(context.directory.page)})
        return
    show_result("A small network that tells clothes apart (Fashion-MNIST)", result)
    where = quoted(place)
    again = "" if runtime == _RUNTIME else f" --runtime {runtime}"
    show_next(
        (str(context.directory.page), "the report: open it in a browser"),
        (str(result.directory), "the network to serve, its weights, how it recovered"),
        (f"layermerge demo --budget 50%{again} --run-dir {where}", "another budget uses the same tables"),
        (f"layermerge explain {where}", "why not more"),
        (f"layermerge compare --run-dir {where} --budget 75%", "beside depth and layeronly"),
    )
