"""Loading without the model's class: what comes back is what was saved, and what cannot be is said in one line."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import layermerge as lm
import zoo
from agreement import same_outputs
from layermerge.errors import ArtifactError, LayerMergeError
from solutions import random_solution

# -- a .pt2 or .onnx file


def merged(name: str, seed: int = 3) -> Any:
    traced = zoo.traced(name)
    return lm.merge(lm.rewrite(traced, random_solution(lm.plan(traced), random.Random(seed))).eval())


def inputs(name: str) -> Any:
    return zoo.ZOO[name].inputs(2)


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
@pytest.mark.parametrize("name", ["basic", "inverted", "unet", "time_shifted_block_conv_shortcut"])
def test_a_file_loads_alone(tmp_path: Path, name: str, suffix: str) -> None:
    network = merged(name)
    loaded = lm.load(lm.export(network, tmp_path / f"net{suffix}", inputs(name)))
    assert not loaded.training
    assert same_outputs(network, loaded, inputs(name))
    own, other = network.state_dict(), loaded.state_dict()
    if suffix == ".pt2":
        assert own.keys() == other.keys()
    common = [key for key in own if key in other and own[key].shape == other[key].shape]
    assert common
    assert all(torch.equal(own[key], other[key]) for key in common)


# -- a directory


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Any, Path]:
    network = merged("basic")
    lm.save(tmp_path / "net", network)
    return network, tmp_path / "net"


def test_a_directory_needs_the_class_or_a_file_that_stands_for_itself(saved: tuple[Any, Path]) -> None:
    network, place = saved
    with pytest.raises(
        ArtifactError, match=r"so its class is needed: layermerge.load\(directory, model\).*'model.pt2'"
    ):
        lm.load(place)
    lm.export(network, place / "model.onnx", inputs("basic"))
    assert type(lm.load(place)).__name__ == "OnnxNetwork"
    lm.export(network, place / "model.pt2", inputs("basic"))
    loaded = lm.load(place)
    assert same_outputs(network, loaded, inputs("basic"))
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in network.state_dict().items())
    # With the model it is what it always was.
    assert lm.load(place, zoo.build("basic")).surgery.candidates == network.surgery.candidates


@pytest.mark.parametrize("name", ["model.pt2", "model.onnx"])
def test_a_file_of_another_network_than_the_weights_beside_it_is_refused(saved: tuple[Any, Path], name: str) -> None:
    network, place = saved
    with torch.no_grad():
        next(iter(network.parameters())).mul_(2)
    lm.export(network, place / name, inputs("basic"))
    with pytest.raises(
        ArtifactError, match=r"holds another network than 'model.safetensors' next to it .*; export it again"
    ):
        lm.load(place)


def test_a_file_beside_truncated_weights_is_refused(saved: tuple[Any, Path]) -> None:
    network, place = saved
    lm.export(network, place / "model.pt2", inputs("basic"))
    (place / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(ArtifactError, match="cannot be read"):
        lm.load(place)


def test_what_is_no_network(saved: tuple[Any, Path], tmp_path: Path) -> None:
    _, place = saved
    for path, message in (
        (tmp_path, "holds no saved network; give the directory of one, or a .pt2 or .onnx file"),
        (place / "model.safetensors", "does not hold a whole network; give a .pt2 or .onnx file"),
        (tmp_path / "none.pt2", "does not exist; give the directory"),
    ):
        with pytest.raises(LayerMergeError, match=message):
            lm.load(path)
    with pytest.raises(ArtifactError, match="is a file, which stands for itself; load it without the model"):
        lm.load(place / "model.safetensors", zoo.build("basic"))
