"""A diffusion model from the command line: compressed, compared, served; and a line for whatever does not fit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import yaml

import layermerge as lm
import tiny_runs
from command_line import Run, one_line
from layermerge.models import import_diffusers, load_model
from layermerge.tasks import Diffusion, load_images

RECIPE: dict[str, Any] = {
    "model": "diffusers:unet",
    "data": {"task": "diffusion", "source": "npz:grey.npz", "held_out": 20, "noise": {"scheduler": "unet"}},
    "importance": {"steps": 2, "batch_size": 8, "optimizer": "adam", "lr": 1e-4},
    "finetune": {"steps": 4, "batch_size": 8, "optimizer": "adam", "lr": 4e-4, "clip_norm": 1.0, "ema": 0.9},
    "runtime": "priced",
    "budgets": ["90%"],
}


@pytest.fixture(scope="module", autouse=True)
def _runtimes() -> Iterator[None]:
    with tiny_runs.priced_runtimes():
        yield


@pytest.fixture(autouse=True)
def _files(run: Run) -> None:
    """A U-Net with attention in its middle, its scheduler, images and a recipe in the directory that commands run in."""
    del run
    write_network(Path("unet"))
    import_diffusers().DDPMScheduler(num_train_timesteps=100).save_pretrained("unet")
    write_images("grey.npz", channels=1)
    write_images("rgb.npz", channels=3)
    write_recipe()


def write_network(place: Path, **changes: Any) -> None:
    torch.manual_seed(0)
    given: dict[str, Any] = {
        "sample_size": 8,
        "in_channels": 1,
        "out_channels": 1,
        "layers_per_block": 1,
        "block_out_channels": (8,),
        "down_block_types": ("DownBlock2D",),
        "up_block_types": ("UpBlock2D",),
        "norm_num_groups": 4,
        "attention_head_dim": None,
    }
    import_diffusers().UNet2DModel(**given | changes).save_pretrained(place)


def write_images(name: str, channels: int) -> None:
    generator = np.random.default_rng(4)
    sets = {part: generator.integers(0, 256, (count, 8, 8, channels), dtype=np.uint8) for part, count in SIZES.items()}
    labels = {part.replace("x", "y"): generator.integers(0, 3, count) for part, count in SIZES.items()}
    np.savez(name, **sets, **labels)  # type: ignore[arg-type]


SIZES = {"x_train": 60, "x_test": 30}


def write_recipe(**changes: Any) -> None:
    Path("mine.yaml").write_text(yaml.safe_dump(RECIPE | changes), encoding="utf-8")


def test_a_diffusion_model_is_compressed_and_served(run: Run) -> None:
    (shown,) = json.loads(run("compress", "mine.yaml", "--run-dir", "a", "--json").out)
    directory = Path("a/layermerge/90pct/plain")
    stored = json.loads((directory / "result.json").read_text(encoding="utf-8"))
    assert stored["score"]["name"] == "noise loss"
    assert stored["score"]["kind"] == "loss"
    assert stored["measured_ms"] <= stored["budget_ms"]
    assert stored["convs_after"] < stored["convs_before"]
    assert shown["score"] == stored["score"]

    original = load_model("diffusers:unet").module
    served = lm.load(directory, original).eval()
    session = onnxruntime.InferenceSession(str(directory / "model.onnx"), providers=["CPUExecutionProvider"])
    x, t = torch.randn(3, 1, 8, 8), torch.tensor([0, 40, 99])
    names = [given.name for given in session.get_inputs()]
    (theirs,) = session.run(None, dict(zip(names, (x.numpy(), t.numpy()), strict=True)))
    with torch.no_grad():
        ours = served(x, t).sample
    assert float((ours - torch.from_numpy(theirs)).abs().max()) <= 1e-5 * float(ours.abs().max())
    # The score is the loss of what is served, and the original's is that of the network as it was given.
    task = Diffusion(*load_images("npz:grey.npz"), original, held_out=20, schedule=_scheduler())
    assert task.test(served).value == pytest.approx(stored["score"]["value"], rel=1e-4)
    assert task.test(original).value == pytest.approx(stored["original_score"]["value"], rel=1e-6)

    before = tiny_runs.contents(Path("a"))
    assert run("compress", "mine.yaml", "--run-dir", "a").code == 0
    assert tiny_runs.contents(Path("a")) == before, "a second call does nothing again"


@pytest.mark.slow
def test_methods_are_compared_and_pruned_networks_compressed_further(run: Run) -> None:
    methods = ("layeronly", "channels+layeronly")
    flags = [flag for method in methods for flag in ("--method", method)]
    result = run("compare", "mine.yaml", "--run-dir", "a", "--budget", "80%", *flags)
    assert result.code == 0, result.err
    table = Path("a/comparison-plain.md").read_text(encoding="utf-8")
    assert "| noise loss |" in table
    for method in methods:
        assert f"| {method} | 80% |" in table, table


@pytest.mark.slow
def test_a_network_that_takes_the_class_is_given_it(run: Run) -> None:
    write_network(Path("unet"), num_class_embeds=3)
    write_recipe(data=RECIPE["data"] | {"condition": "labels"})
    result = run("compress", "mine.yaml", "--run-dir", "a", "--method", "depth", "--budget", "100%")
    assert result.code == 0, result.err
    session = onnxruntime.InferenceSession("a/depth/100pct/plain/model.onnx", providers=["CPUExecutionProvider"])
    assert len(session.get_inputs()) == 3


def _scheduler() -> Any:
    return import_diffusers().DDPMScheduler(num_train_timesteps=100)


# -- what does not fit


def refusal(run: Run, **data: Any) -> str:
    write_recipe(data=RECIPE["data"] | data)
    result = run("compress", "mine.yaml", "--run-dir", "a")
    assert result.code == 2
    assert not Path("a").exists() or not list(Path("a").rglob("*.onnx"))
    return one_line(result)


def test_images_of_other_channels(run: Run) -> None:
    assert "UNet2DModel cannot take images of 3 x 8 x 8 with their time steps" in refusal(run, source="npz:rgb.npz")


def test_a_scheduler_that_does_not_fit(run: Run) -> None:
    Path("flow").mkdir()
    import_diffusers().FlowMatchEulerDiscreteScheduler().save_pretrained("flow")
    assert "FlowMatchEulerDiscreteScheduler has no alphas_cumprod" in refusal(run, noise={"scheduler": "flow"})
    assert "scheduler 'nowhere' cannot be read" in refusal(run, noise={"scheduler": "nowhere"})
    assert "data.noise.prediction" in refusal(run, noise={"prediction": "flow"})
    assert "data.noise.first_beta" in refusal(run, noise={"first_beta": 2.0})


def test_a_network_without_time_input(run: Run) -> None:
    write_recipe(model="timm:resnet10t")
    result = run("compress", "mine.yaml", "--run-dir", "a")
    assert result.code == 2
    assert "does not take 2 inputs" in one_line(result)


def test_noise_for_a_classifier(run: Run) -> None:
    assert "noise and condition are for diffusion" in refusal(run, task="classification")


def test_a_class_for_a_network_that_takes_none(run: Run) -> None:
    message = refusal(run, condition="labels")
    assert "UNet2DModel cannot take images of 1 x 8 x 8 with their time steps: " in message
