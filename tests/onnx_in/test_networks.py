"""Networks that are read from files: their structure is that of the network which was exported, and so are their figures."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper
from torch import Tensor, nn
from torch.nn import functional as F

import layermerge as lm
from layermerge.errors import ModelError
from layermerge.models import load_model
from onnx_files import answers, exported, graph_file, settled


class Block(nn.Module):
    """A residual block with an activation of choice, which exporters write in several operators."""

    def __init__(self, width: int, activation: nn.Module) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.first_norm, self.second_norm = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        inner = self.second_norm(self.second(self.activation(self.first_norm(self.first(x)))))
        joined: Tensor = self.activation(x + inner)
        return joined


class Net(nn.Module):
    """A stem, blocks, a gate, a head; outputs are a map and scores."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), activation)
        self.blocks = nn.Sequential(Block(8, activation), Block(8, activation))
        self.squeeze, self.excite = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.blocks(self.stem(x))
        gate = self.excite(self.squeeze(x.mean((2, 3), keepdim=True)).relu()).sigmoid()
        x = F.interpolate(x * gate, scale_factor=2.0)
        return x, self.head(x.mean((2, 3)))


def net(activation: nn.Module | None = None) -> Net:
    found = settled(Net(activation or nn.ReLU()))
    assert isinstance(found, Net)
    return found


def ranges(model: nn.Module, size: int = 16) -> list[Any]:
    plan = lm.plan(lm.trace(model, torch.randn(2, 3, size, size)))
    return sorted((each.start, each.end, len(each.kept), str(each.spec)) for each in plan.candidates)


ACTIVATIONS = [
    (nn.SiLU(), False, 11, "silu"),
    (nn.Hardswish(), False, 11, "hard_swish"),
    (nn.GELU(), False, 17, "gelu"),
    (nn.Mish(), False, 13, "mish"),
]


@pytest.mark.parametrize(("activation", "new", "opset", "name"), ACTIVATIONS)
def test_activations_that_were_written_out_are_one_again(
    activation: nn.Module, new: bool, opset: int, name: str, tmp_path: Path
) -> None:
    original = net(activation)
    network = lm.from_onnx(exported(original, tmp_path / "a.onnx", torch.randn(2, 3, 16, 16), new=new, opset=opset))
    calls = [getattr(step.run, "__name__", "") for step in network.steps]
    assert calls.count(name) == 5
    assert ranges(network) == ranges(original)


def test_an_activation_whose_parts_are_used_elsewhere_stays_in_parts(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["s"]),
        helper.make_node("Mul", ["x", "s"], ["m"]),
        helper.make_node("Add", ["m", "s"], ["y"]),
    ]
    file = graph_file(tmp_path / "a.onnx", nodes)
    network, x = lm.from_onnx(file), torch.randn(2, 4, 6, 6)
    assert len(network.steps) == 3
    assert np.allclose(network(x).numpy(), answers(file, x)[0], atol=1e-6)


def test_one_batch_size_becomes_any(tmp_path: Path) -> None:
    """With the shape of its output written in, as exporters do that are given no free axes."""
    original = net()
    file = exported(original, tmp_path / "a.onnx", torch.randn(1, 3, 16, 16), new=False, opset=11, dynamic_axes=None)
    network = lm.from_onnx(file)
    assert network.file_interface.batch == 1
    x = torch.randn(5, 3, 16, 16)
    with torch.no_grad():
        mine, theirs = network(x), original(x)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(mine, theirs, strict=True))
    shape = np.array([1, 4, 36], dtype=np.int64)
    flat = graph_file(
        tmp_path / "b.onnx", [helper.make_node("Reshape", ["x", "s"], ["y"])], {"s": shape}, {"x": (1, 4, 6, 6)}
    )
    assert lm.from_onnx(flat)(torch.randn(3, 4, 6, 6)).shape == (3, 4, 36)


def test_a_network_that_mixes_its_images_is_refused(tmp_path: Path) -> None:
    """Of one image the first axis can be summed; of several, that would not be what the file computes."""
    nodes = [helper.make_node("ReduceMean", ["x"], ["y"], name="all", axes=[0], keepdims=1)]
    file = graph_file(tmp_path / "a.onnx", nodes, inputs={"x": (1, 4, 6, 6)}, opset=13)
    with pytest.raises(ModelError, match="cannot be read faithfully: output 'y' differs from onnxruntime's"):
        lm.from_onnx(file)


def test_layers_have_readable_names_of_their_own(tmp_path: Path) -> None:
    example = torch.randn(2, 3, 16, 16)
    for new, opset in ((True, 18), (False, 13)):
        network = lm.from_onnx(exported(net(), tmp_path / "a.onnx", example, new=new, opset=opset))
        names = [name for name, part in network.named_modules() if isinstance(part, nn.Conv2d)]
        assert names == [
            "stem.0",
            "blocks.0.first",
            "blocks.0.second",
            "blocks.1.first",
            "blocks.1.second",
            "squeeze",
            "excite",
        ]
    weight = np.ones((4, 4, 1, 1), np.float32)
    for awkward in (
        "forward.weight",
        "a.b.weight",
        "a.weight",
        "_modules.weight",
        "..weight",
        "été/\n.weight",
        "x" * 500,
    ):
        nodes = [
            helper.make_node("Conv", ["x", awkward], ["y"], name=awkward),
            helper.make_node("Conv", ["y", "a.b.c.weight"], ["z"]),
        ]
        file = graph_file(tmp_path / "a.onnx", nodes, {awkward: weight, "a.b.c.weight": weight})
        assert len(lm.from_onnx(file).state_dict()) == 2


def test_weights_that_are_shared_stay_shared(tmp_path: Path) -> None:
    weight = np.ones((4, 4, 1, 1), np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"]), helper.make_node("Conv", ["y", "w"], ["z"])]
    assert len(list(lm.from_onnx(graph_file(tmp_path / "a.onnx", nodes, {"w": weight})).parameters())) == 1


def test_a_network_can_be_copied_and_sent(tmp_path: Path) -> None:
    network = lm.from_onnx(exported(net(nn.SiLU()), tmp_path / "a.onnx", torch.randn(2, 3, 16, 16), new=True, opset=18))
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        expected = network(x)[1]
        assert torch.equal(copy.deepcopy(network)(x)[1], expected)
        assert torch.equal(pickle.loads(pickle.dumps(network))(x)[1], expected)
        with pytest.raises(TypeError, match="takes 1 inputs, but 2 were given"):
            network(x, x)


# -- what the file says is kept


def labelled(path: Path, batch: str | int = "batch", sides: tuple[str | int, str | int] = ("high", "wide")) -> Path:
    """A file with names, axes and metadata of its own."""
    free = {place: name for place, name in enumerate((batch, "", *sides)) if isinstance(name, str) and name}
    example = torch.randn(1, 3, 16, 16)
    names: Any = {"input_names": ["my image"], "output_names": ["a/map", "scores:0"]}
    axes = {"my image": free, **({"scores:0": {0: batch}} if isinstance(batch, str) else {})}
    exported(net(), path, example, new=False, opset=13, dynamic_axes=axes, **names)
    model = onnx.load(path)
    helper.set_model_props(model, {"labels": "cat\ndog", "author": "someone"})
    onnx.save(model, path)
    return path


def ports(values: Any) -> list[tuple[str, list[Any]]]:
    return [(each.name, [dim.dim_value or dim.dim_param for dim in each.type.tensor_type.shape.dim]) for each in values]


@pytest.mark.parametrize(("batch", "sides"), [("batch", ("high", "wide")), (1, (16, 16))])
def test_the_new_file_keeps_names_axes_and_metadata(batch: Any, sides: tuple[Any, Any], tmp_path: Path) -> None:
    before = onnx.load(labelled(tmp_path / "a.onnx", batch, sides))
    network = lm.from_onnx(tmp_path / "a.onnx")
    free = network.file_interface.free_size
    assert free is isinstance(sides[0], str)
    x = torch.randn(2, 3, 16, 16)
    traced = lm.trace(network, x, free_size=free)
    whole = next(each for each in lm.plan(traced).candidates if each.start == 1 and each.end == 3 and not each.kept)
    fast = lm.merge(lm.rewrite(traced, [whole]))
    lm.export(fast, tmp_path / "b.onnx", x)
    after = onnx.load(tmp_path / "b.onnx")
    assert ports(after.graph.input) == ports(before.graph.input)
    assert [name for name, _ in ports(after.graph.output)] == ["a/map", "scores:0"]
    assert ports(after.graph.output)[1] == ports(before.graph.output)[1]
    assert {each.key: each.value for each in after.metadata_props}.items() >= {
        "labels": "cat\ndog",
        "author": "someone",
    }.items()
    shape = (3, 3, 20, 28) if free else (1, 3, 16, 16)
    given = torch.randn(*shape)
    session = onnxruntime.InferenceSession(str(tmp_path / "b.onnx"), providers=["CPUExecutionProvider"])
    with torch.no_grad():
        expected = fast(given)
    for mine, theirs in zip(session.run(None, {"my image": given.numpy()}), expected, strict=True):
        assert np.allclose(mine, theirs.numpy(), atol=1e-5)


# -- by name


def test_models_are_named_by_their_file(tmp_path: Path) -> None:
    fixed = load_model(f"onnx:{labelled(tmp_path / 'a.onnx', 1, (16, 16))}")
    assert fixed.example_inputs.shape == (2, 3, 16, 16)
    free = labelled(tmp_path / "b.onnx")
    with pytest.raises(ModelError, match="does not say what it takes; pass its input shape"):
        load_model(f"onnx:{free}").example_inputs  # noqa: B018
    assert load_model(f"onnx:{free}", None, (3, 24, 32)).example_inputs.shape == (2, 3, 24, 32)
    with pytest.raises(ModelError, match="input 'my image' is 3xhighxwide, not 1x24x32; give a shape that fits"):
        load_model(f"onnx:{free}", None, (1, 24, 32))


def test_several_inputs_and_outputs(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["left", "w"], ["a"]),
        helper.make_node("Add", ["a", "right"], ["b"]),
        helper.make_node("Split", ["b", "s"], ["one", "two"], axis=1),
    ]
    constants = {"w": np.random.default_rng(0).standard_normal((4, 4, 1, 1)).astype(np.float32), "s": np.array([1, 3])}
    sizes: Any = {"left": ("N", 4, 6, 6), "right": ("N", 4, 6, 6)}
    file = graph_file(tmp_path / "a.onnx", nodes, constants, sizes)
    loaded = load_model(f"onnx:{file}")
    assert [tuple(each.shape) for each in loaded.example_inputs] == [(2, 4, 6, 6)] * 2
    traced = lm.trace(loaded.module, loaded.example_inputs)
    lm.export(lm.merge(lm.rewrite(traced, [])), tmp_path / "b.onnx", loaded.example_inputs)
    given = [torch.randn(3, 4, 6, 6) for _ in range(2)]
    for before, after in zip(answers(file, *given), answers(tmp_path / "b.onnx", *given), strict=True):
        assert np.allclose(before, after, atol=1e-5)
    with pytest.raises(ModelError, match="has 2 inputs; input_shape is for networks of one"):
        lm.from_onnx(file, (4, 6, 6))
