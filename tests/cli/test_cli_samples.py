"""Sampling from the command line: images that are where they should be, figures, and one line for every mistake."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

import layermerge as lm
import layermerge.cli.sample
import real_networks
from command_line import DENOISER, Result, Run, document, one_line
from layermerge.models import load_model
from layermerge.sampling.ddim import sample
from layermerge.sampling.pictures import read_images, to_pixels
from layermerge.sampling.quality import TorchScriptExtractor, features_of, fid, kid
from layermerge.tasks.noise import NoiseSchedule
from solutions import untouched_solution

NET = "python:denoising:net"


class Means(nn.Module):
    def forward(self, shown: Tensor) -> Tensor:
        return torch.cat([shown.mean((2, 3)), shown.square().mean((2, 3))], 1)


@pytest.fixture(autouse=True)
def _files(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del run
    (tmp_path / "denoising.py").write_text(DENOISER, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "denoising", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))


def network() -> Any:
    return load_model(NET).module


def by_python(**options: Any) -> Tensor:
    given = {"schedule": NoiseSchedule.from_betas(), "count": 5, "steps": 4, **options}
    return to_pixels(sample(given.pop("network", None) or network(), given.pop("schedule"), (3, 8, 8), **given))


# -- sample


def test_images_and_grid_are_written(run: Run) -> None:
    made = document(run("sample", NET, "--count", "5", "--steps", "4", "--out", "made", "--grid", "all.png", "--json"))
    assert made == {"images": 5, "shape": "3x8x8", "steps": 4, "seed": 0, "written_to": ["made", "all.png"]}
    assert torch.equal(read_images("made"), by_python())
    with Image.open("all.png") as grid:
        assert grid.size == (28, 18)


def test_a_summary_for_people(run: Run) -> None:
    result = run("sample", NET, "--count", "2", "--steps", "3", "--grid", "all.png")
    assert (result.code, result.err) == (0, "")
    lines = [line.split() for line in result.out.splitlines()]
    assert lines[1:4] == [["images", "2", "3x8x8"], ["time", "steps", "4"], ["seed", "0"]]  # 333 apart, which makes 4
    assert ["all.png", "#", "the", "images"] in lines


def test_options_reach_the_sampler(run: Run) -> None:
    options = ("--eta", "0.5", "--spacing", "quadratic", "--seed", "3", "--steps", "6", "--count", "5")
    document(run("sample", NET, *options, "--out", "made", "--json"))
    assert torch.equal(read_images("made"), by_python(eta=0.5, spacing="quadratic", seed=3, steps=6))
    assert not torch.equal(read_images("made"), by_python(steps=6))


def test_a_scheduler_of_ones_own(run: Run, tmp_path: Path) -> None:
    scheduler = real_networks.import_diffusers().DDIMScheduler(num_train_timesteps=100, prediction_type="v_prediction")
    scheduler.save_pretrained(tmp_path / "scheduler")
    options = ("sample", NET, "--count", "5", "--steps", "4", "--json")
    document(run(*options, "--scheduler", "scheduler", "--out", "made"))
    document(run(*options, "--scheduler", "scheduler/scheduler_config.json", "--out", "again"))
    assert torch.equal(read_images("made"), by_python(schedule=NoiseSchedule.of(scheduler)))
    assert torch.equal(read_images("made"), read_images("again"))


def test_weights_are_loaded(run: Run, tmp_path: Path) -> None:
    other = network()
    with torch.no_grad():
        other.body[4].bias.fill_(0.5)
    save_file(other.state_dict(), tmp_path / "other.safetensors")
    document(
        run("sample", NET, "--weights", "other.safetensors", "--count", "5", "--steps", "4", "--out", "a", "--json")
    )
    assert torch.equal(read_images("a"), by_python(network=other))
    assert not torch.equal(read_images("a"), by_python())


def test_the_compressed_network_of_a_run(run: Run) -> None:
    """Saved with other weights than the model is built with, so that it shows which network was used."""
    trained = network()
    with torch.no_grad():
        trained.body[4].bias.fill_(0.5)
    traced = lm.trace(trained, (torch.randn(2, 3, 8, 8), torch.tensor([10, 500])))
    lm.save("merged", lm.merge(lm.rewrite(traced, untouched_solution(lm.plan(traced)))))
    document(run("sample", NET, "--run", "merged", "--count", "5", "--steps", "4", "--out", "a", "--json"))
    assert (read_images("a").int() - by_python(network=trained).int()).abs().max() <= 1
    assert not torch.equal(read_images("a"), by_python())


def test_a_diffusers_directory(run: Run, tmp_path: Path) -> None:
    unet: Any = real_networks.small_unet()
    unet.save_pretrained(tmp_path / "unet")
    made = document(run("sample", "diffusers:unet", "--count", "2", "--steps", "2", "--out", "made", "--json"))
    assert made["shape"] == "3x16x16"
    expected = to_pixels(sample(unet, NoiseSchedule.from_betas(), (3, 16, 16), count=2, steps=2))
    assert (read_images("made").int() - expected.int()).abs().max() <= 1


def test_a_model_that_does_not_say_what_it_takes(run: Run) -> None:
    options = ("--count", "2", "--steps", "2", "--grid", "a.png")
    assert "pass its input shape, for instance --input" in one_line(run("sample", "python:denoising:quiet", *options))
    made = document(run("sample", "python:denoising:quiet", "--input", "3x6x6", *options, "--json"))
    assert made["shape"] == "3x6x6"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((NET,), "the images have no place to go; give --out DIR, --grid FILE.png or both"),
        ((NET, "--grid", "a.gif"), "cannot write the grid 'a.gif'"),
        ((NET, "--grid", "a.png", "--steps", "1001"), "cannot take 1001 steps of a schedule of 1000"),
        ((NET, "--grid", "a.png", "--scheduler", "absent.json"), "scheduler 'absent.json' cannot be read"),
        ((NET, "--grid", "a.png", "--run", "absent"), "does not exist"),
        ((NET, "--grid", "a.png", "--weights", "absent.pth"), "weights file 'absent.pth' does not exist"),
        (("python:tiny:net_and_inputs", "--grid", "a.png"), "the network failed at time step 980"),
        (("python:denoising:conditional", "--grid", "a.png"), "takes 3 inputs; here it gets images and time steps"),
        (("python:denoising:of_vectors", "--grid", "a.png"), "does not take images first"),
        (("diffusers:absent", "--grid", "a.png"), "is not a diffusers configuration"),
    ],
)
def test_mistakes_are_one_line(run: Run, arguments: tuple[str, ...], message: str) -> None:
    assert message in one_line(run("sample", *arguments))
    assert not Path("a.png").exists()


def test_a_folder_of_other_images_is_refused_before_the_network_is_loaded(run: Run) -> None:
    document(run("sample", NET, "--count", "3", "--steps", "2", "--out", "made", "--json"))
    message = one_line(run("sample", "python:absent:net", "--count", "2", "--out", "made"))
    assert "'made' holds other images, such as 'made/00002.png'" in message
    document(run("sample", NET, "--count", "4", "--steps", "2", "--out", "made", "--json"))


@pytest.mark.parametrize("option", [("--count", "0"), ("--eta", "2"), ("--spacing", "cubic"), ("--seed", "-1")])
def test_values_out_of_range(run: Run, option: tuple[str, str]) -> None:
    result: Result = run("sample", NET, "--grid", "a.png", *option)
    assert result.code == 2
    assert option[0] in result.err


# -- quality


@pytest.fixture
def extractor(tmp_path: Path) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Means()).save(str(tmp_path / "means.pt"))  # type: ignore[no-untyped-call]
    for name, seed in (("ours", 1), ("theirs", 2)):
        np.save(tmp_path / f"{name}.npy", np.random.default_rng(seed).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8))
    return "means.pt"


def test_both_figures(run: Run, extractor: str) -> None:
    options = ("--extractor", extractor, "--metric", "both", "--subset-size", "10")
    found = document(run("quality", "ours.npy", "theirs.npy", *options, "--json"))
    eyes = TorchScriptExtractor(extractor)
    ours, theirs = (features_of(read_images(name), eyes) for name in ("ours.npy", "theirs.npy"))
    mean, deviation = kid(ours, theirs, subset_size=10)
    assert found == {
        "kid": mean,
        "kid_std": deviation,
        "fid": fid(ours, theirs),
        "samples": 12,
        "reference": 12,
        "extractor": eyes.name,
    }
    shown = run("quality", "ours.npy", "theirs.npy", *options).out
    lines = [line.split() for line in shown.splitlines()]
    assert ["KID", f"{mean:.6g}"] in lines
    assert [*["KID,", "standard", "deviation"], f"{deviation:.6g}"] in lines
    assert ["samples", "12", "images"] in lines
    assert "seen by means.pt " in shown


@pytest.mark.parametrize(("metric", "figures"), [((), {"kid", "kid_std"}), (("--metric", "fid"), {"fid"})])
def test_one_figure_of_the_first_images(run: Run, extractor: str, metric: tuple[str, ...], figures: set[str]) -> None:
    options = ("--extractor", extractor, "--subset-size", "8", "--count", "9", "--cache", "kept", *metric, "--json")
    found = document(run("quality", "ours.npy", "theirs.npy", *options))
    assert found.keys() == figures | {"samples", "reference", "extractor"}
    assert (found["samples"], found["reference"]) == (9, 9)
    assert len(list(Path("kept").iterdir())) == 2
    assert document(run("quality", "ours.npy", "theirs.npy", *options)) == found


def test_samples_that_were_just_made(run: Run, extractor: str) -> None:
    document(run("sample", NET, "--count", "4", "--steps", "2", "--out", "made", "--json"))
    found = document(run("quality", "made", "made", "--extractor", extractor, "--subset-size", "4", "--json"))
    assert found["samples"] == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ours.npy", "theirs.npy"), "KID draws subsets of 1000 images, the samples are 12"),
        (("ours.npy", "theirs.npy", "--metric", "fid", "--count", "5"), "FID needs 6 images or more for 6 features"),
        (("ours.npy", "theirs.npy", "--count", "13"), "'ours.npy' has 12 images, --count asks for 13"),
        (("absent", "theirs.npy"), "'absent' is not a place of images"),
        (("ours.npy", "npz:absent.npz"), "'absent.npz' does not exist"),
    ],
)
def test_mistakes_of_quality_are_one_line(run: Run, extractor: str, arguments: tuple[str, ...], message: str) -> None:
    assert message in one_line(run("quality", *arguments, "--extractor", extractor))


def test_no_extractor(run: Run) -> None:
    assert "extractor 'absent.pt' cannot be read" in one_line(run("quality", "a", "b", "--extractor", "absent.pt"))
    assert run("quality", "a", "b").code == 2


def test_importing_the_verbs_needs_no_torch() -> None:
    source = Path(layermerge.cli.sample.__file__).read_text(encoding="utf-8")
    top = [line for line in source.splitlines() if line.startswith(("import ", "from "))]
    assert not any("torch" in line or "sampling" in line for line in top)
