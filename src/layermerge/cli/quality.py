"""The verb quality: how near samples are to real images."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from layermerge.cli.app import JsonOption, app, print_json

if TYPE_CHECKING:
    from torch import Tensor


class Metric(str, Enum):
    """What tells how near samples are to the reference."""

    kid = "kid"
    fid = "fid"
    both = "both"


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
    from layermerge.cli.summary import Line, show_next, show_summary
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
    if as_json:
        print_json({**facts, **counts, "extractor": network.name})
        return
    titles = {"kid": "KID", "kid_std": "KID, standard deviation", "fid": "FID"}
    lines: list[Line] = [(titles[name], "", f"{value:.6g}", "") for name, value in facts.items()]
    lines += [(name, "", f"{number:,}", "images") for name, number in counts.items()]
    show_summary(f"{samples} beside {reference}, seen by {network.name}; lower is better", lines, ("", ""))
    show_next(("layermerge sample MODEL --out DIR", "the original's own images, to compare with"))


def _first_images(place: str, count: int | None) -> Tensor:
    from layermerge.errors import DataError
    from layermerge.sampling.pictures import read_images

    images = read_images(place)
    if count is not None and len(images) < count:
        raise DataError(f"'{place}' has {len(images)} images, --count asks for {count}; give a smaller count")
    return images if count is None else images[:count]
