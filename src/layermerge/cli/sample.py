"""The verb sample: images of a diffusion network."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from layermerge.cli.app import JsonOption, app, print_json
from layermerge.cli.flags import InputOption, ModelArgument, WeightsOption


class SpacingChoice(str, Enum):
    """How time steps are spread over the noise schedule."""

    uniform = "uniform"
    quadratic = "quadratic"


@app.command()
def sample(
    model: ModelArgument,
    run: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Sample from the compressed network of this run, or saved there, instead."),
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Which network of the run; that of its recipe by default.")] = None,
    weights: WeightsOption = None,
    input: InputOption = None,
    scheduler: Annotated[
        Path | None,
        typer.Option(metavar="DIR_OR_JSON", help="A diffusers scheduler; linear, 1e-4 to 0.02 in 1000, by default."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many images.")] = 64,
    steps: Annotated[int, typer.Option(min=1, help="How many time steps are visited.")] = 50,
    eta: Annotated[float, typer.Option(min=0.0, max=1.0, help="Noise added on the way: 0 none, 1 most.")] = 0.0,
    spacing: Annotated[SpacingChoice, typer.Option(help="How the time steps are spread.")] = SpacingChoice.uniform,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same images.")] = 0,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write every image here, as 00000.png ...")] = None,
    grid: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Write all images as one picture.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make images with a diffusion network, by DDIM.

    Example: layermerge sample diffusers:ddpm-cifar10 --run runs/a/merged --count 64 --grid samples.png
    """
    from layermerge.cli.summary import Line, quoted, show_next, show_summary
    from layermerge.models import load_model, parse_shape
    from layermerge.sampling.ddim import sample as make_images
    from layermerge.sampling.ddim import time_steps
    from layermerge.sampling.pictures import write_grid, write_images
    from layermerge.tasks.noise import NoiseSchedule

    _require_place(out, grid, count)
    schedule = NoiseSchedule.from_betas() if scheduler is None else NoiseSchedule.read(scheduler)
    loaded = load_model(model, weights, parse_shape(input) if input is not None else None)
    shape = _image_shape(model, loaded.example_inputs)
    network = loaded.module if run is None else _compressed(run, budget, loaded.module)
    how: dict[str, Any] = {"count": count, "steps": steps, "eta": eta, "spacing": spacing.value, "seed": seed}
    images = make_images(network, schedule, shape, **how, show_progress=True)
    if out is not None:
        write_images(images, out)
    if grid is not None:
        write_grid(images, grid)
    written = [str(place) for place in (out, grid) if place is not None]
    visited, size = len(time_steps(schedule.steps, steps, spacing.value)), "x".join(map(str, shape))
    if as_json:
        print_json({"images": count, "shape": size, "steps": visited, "seed": seed, "written_to": written})
        return
    lines: list[Line] = [
        ("images", "", str(count), size),
        ("time steps", "", str(visited), ""),
        ("seed", "", str(seed), ""),
    ]
    show_summary(f"Images of {model if run is None else run}", lines, ("", ""))
    judge = f"layermerge quality {quoted(out or 'DIR')} REFERENCE --extractor FILE.pt"
    show_next(*((place, "the images") for place in written), (judge, "how near they are to real images"))


def _compressed(run: Path, budget: str | None, original: Any) -> Any:
    from layermerge.runs.directory import RunDirectory
    from layermerge.runs.networks import find_network
    from layermerge.runs.recipe_file import run_recipe

    recipe = run_recipe(RunDirectory(run), None, {} if budget is None else {"budgets": [budget]})
    return find_network(run, recipe).load(original)


def _require_place(out: Path | None, grid: Path | None, count: int) -> None:
    """Before time is spent on images."""
    from layermerge.errors import DataError
    from layermerge.sampling.pictures import require_free, require_png

    if out is None and grid is None:
        raise DataError("the images have no place to go; give --out DIR, --grid FILE.png or both")
    if grid is not None:
        require_png(grid)
    if out is not None:
        require_free(out, count)


def _image_shape(model: str, inputs: Any) -> tuple[int, int, int]:
    """Channels, height and width of what the network denoises."""
    from torch import Tensor

    from layermerge.errors import DataError

    given = list(inputs.values()) if isinstance(inputs, dict) else inputs
    given = list(given) if isinstance(given, (tuple, list)) else [given]
    if len(given) > 2:
        raise DataError(
            f"model '{model}' takes {len(given)} inputs; here it gets images and time steps only: "
            "pass conditions to layermerge.sampling.ddim.sample in Python"
        )
    if not isinstance(given[0], Tensor) or given[0].ndim != 4:
        raise DataError(f"model '{model}' does not take images first; give a network called as net(images, time steps)")
    channels, height, width = given[0].shape[1:]
    return channels, height, width
