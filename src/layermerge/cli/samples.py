"""The verbs of diffusion networks: sample, quality."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from layermerge.cli.app import InputOption, JsonOption, ModelArgument, WeightsOption, app, report

if TYPE_CHECKING:
    from torch import Tensor


class SpacingChoice(str, Enum):
    """How time steps are spread over the noise schedule."""

    uniform = "uniform"
    quadratic = "quadratic"


class Metric(str, Enum):
    """What tells how near samples are to the reference."""

    kid = "kid"
    fid = "fid"
    both = "both"


@app.command()
def sample(
    model: ModelArgument,
    run: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Sample from the compressed network saved there instead.")
    ] = None,
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
    from layermerge.models import load_model, parse_shape
    from layermerge.runs.saving import load
    from layermerge.sampling.ddim import sample as make_images
    from layermerge.sampling.ddim import time_steps
    from layermerge.sampling.pictures import write_grid, write_images
    from layermerge.tasks.noise import NoiseSchedule

    _require_place(out, grid, count)
    schedule = NoiseSchedule.from_betas() if scheduler is None else NoiseSchedule.read(scheduler)
    loaded = load_model(model, weights, parse_shape(input) if input is not None else None)
    shape = _image_shape(model, loaded.example_inputs)
    network = loaded.module if run is None else load(run, loaded.module)
    images = make_images(
        network,
        schedule,
        shape,
        count=count,
        steps=steps,
        eta=eta,
        spacing=spacing.value,
        seed=seed,
        show_progress=True,
    )
    if out is not None:
        write_images(images, out)
    if grid is not None:
        write_grid(images, grid)
    written = [str(place) for place in (out, grid) if place is not None]
    facts: dict[str, Any] = {"images": count, "shape": "x".join(map(str, shape))}
    facts |= {"steps": len(time_steps(schedule.steps, steps, spacing.value)), "seed": seed}
    report(as_json, {**facts, "written_to": written if as_json else " and ".join(written)})


@app.command()
def quality(
    samples: Annotated[
        str, typer.Argument(metavar="SAMPLES", help="A folder of images, an .npy or .npz file, or a data source.")
    ],
    reference: Annotated[
        str, typer.Argument(metavar="REFERENCE", help="Real images, named alike; of cifar10:PATH, the training part.")
    ],
    extractor: Annotated[
        Path, typer.Option(metavar="FILE", help="The network that sees features, as a TorchScript file.")
    ],
    metric: Annotated[Metric, typer.Option(help="KID, also for few images, FID, or both.")] = Metric.kid,
    subset_size: Annotated[int, typer.Option(min=2, help="Images in each random subset of KID.")] = 1000,
    count: Annotated[int | None, typer.Option(metavar="N", min=2, help="Use the first N images of both.")] = None,
    cache: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep features here for the next time.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Tell how near samples are to real images; lower is better.

    Example: layermerge quality samples cifar10:data/cifar-10-batches-bin --extractor features.pt --subset-size 50
    """
    from layermerge.sampling import quality as measures

    measures.import_metrics("fid")
    network = measures.TorchScriptExtractor(extractor)
    sets = {"samples": _first_images(samples, count), "reference": _first_images(reference, count)}
    counts = {name: len(images) for name, images in sets.items()}
    # Features can take hours: what is missing is said as soon as it is known.
    if metric is not Metric.fid:
        measures.require_for_kid(counts, subset_size)
    ours = measures.features_of(sets["samples"], network, cache=cache, show_progress=True)
    if metric is not Metric.kid:
        measures.require_for_fid(counts, ours.shape[1])
    theirs = measures.features_of(sets["reference"], network, cache=cache, show_progress=True)
    facts: dict[str, Any] = {}
    if metric is not Metric.fid:
        facts["kid"], facts["kid_std"] = measures.kid(ours, theirs, subset_size=subset_size)
    if metric is not Metric.kid:
        facts["fid"] = measures.fid(ours, theirs)
    shown = facts if as_json else {name: f"{value:.6g}" for name, value in facts.items()}
    report(as_json, {**shown, **counts, "extractor": network.name})


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


def _first_images(place: str, count: int | None) -> Tensor:
    from layermerge.errors import DataError
    from layermerge.sampling.pictures import read_images

    images = read_images(place)
    if count is not None and len(images) < count:
        raise DataError(f"'{place}' has {len(images)} images, --count asks for {count}; give a smaller count")
    return images if count is None else images[:count]
