"""A traced network refuses an input that it was not captured for: in every form, however it is called, wherever it goes."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import free_sizes
import layermerge as lm
import zoo
from layermerge.errors import ArtifactError, InputError
from layermerge.tracing.trace import Trace
from zoo_registry import conv, random_tensor

cloudpickle = pytest.importorskip("cloudpickle")
OTHER_SIZE = (
    r"^input 'x' is 3x20x20 but the network was traced with 3x16x16; trace it with free_size=True, or resize the input$"
)


def sent(module: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*LeafSpec.*", FutureWarning)  # torch's own
        return cloudpickle.loads(cloudpickle.dumps(module))


def saved(module: nn.Module) -> Any:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*LeafSpec.*", FutureWarning)
        torch.save(module, file)
        file.seek(0)
        return torch.load(file, weights_only=False)


FORMS: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda module: module,
    "copied": copy.deepcopy,
    "in train mode": lambda module: copy.deepcopy(module).train(),
    "called by its method": lambda module: module.forward,
    "sent to another process": sent,
    "saved by torch": saved,
    "widened": lambda module: copy.deepcopy(module).double(),
}


STAGES: dict[str, Callable[[Trace], Any]] = {
    "traced": lambda trace: trace.module,
    "rewritten": lambda trace: lm.rewrite(trace, []),
    "merged": lambda trace: lm.merge(lm.rewrite(trace, [])),
}


@pytest.mark.parametrize("name", ["averaged", "resized", "same padding"])
@pytest.mark.parametrize("stage", STAGES)
def test_sizes_that_the_graph_has_baked_in_are_refused(name: str, stage: str) -> None:
    """The three that computed nonsense: a hand-made mean was 26 % off, a map came back at the traced size, another shape."""
    trace = lm.trace(free_sizes.build(name), free_sizes.image())
    net = STAGES[stage](trace)
    with pytest.raises(InputError, match=OTHER_SIZE):
        net(free_sizes.image(20, 20))
    assert net(free_sizes.image(batch=5)) is not None


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("merged", [True, False])
def test_every_form_refuses(form: str, merged: bool) -> None:
    net = lm.rewrite(zoo.traced("functional_relu"), [])
    called = FORMS[form](lm.merge(net) if merged else net)
    dtype = torch.float64 if form == "widened" else torch.float32
    assert called(random_tensor(3, 3, 16, 16).to(dtype)).shape == (3, 4, 16, 16)
    with pytest.raises(InputError, match=OTHER_SIZE):
        called(random_tensor(2, 3, 20, 20).to(dtype))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            torch.zeros(2, 4, 16, 16),
            r"^input 'x' is 4x16x16 but the network was traced with 3x16x16; give it that shape$",
        ),
        (
            torch.zeros(3, 16, 16),
            r"^input 'x' has 3 dimensions, but the network was traced with 4; give a batch of 3x16x16$",
        ),
        ([1.0], r"^input 'x' is a list, but the network was traced with a tensor$"),
    ],
)
def test_other_shapes(x: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        zoo.traced("functional_relu").module(x)


def test_keyword_and_nested_inputs() -> None:
    named = zoo.traced("inputs_by_name").module
    good = zoo.ZOO["inputs_by_name"].inputs(3)
    named(**good)
    with pytest.raises(
        InputError, match=r"^input 'depth' is 2x8x8 but the network was traced with 2x16x16; trace it with "
    ):
        named(**{**good, "depth": torch.zeros(3, 2, 8, 8)})
    nested = zoo.traced("nested_inputs").module
    given = zoo.ZOO["nested_inputs"].inputs(2)
    given["batch"]["image"] = torch.zeros(2, 3, 20, 20)
    with pytest.raises(
        InputError, match=r"^input 'batch_image' is 3x20x20 but the network was traced with 3x16x16; trace it"
    ):
        nested(**given)


def test_inputs_without_a_batch_keep_their_whole_shape() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = conv(3, 4), conv(4, 4)

        def forward(self, x: Tensor, factors: Tensor) -> Tensor:
            return self.second(F.relu(self.first(x) * factors.mean()))  # type: ignore[no-any-return]

    net = lm.trace(Weighted(), (random_tensor(2, 3, 16, 16), random_tensor(5))).module
    net(random_tensor(4, 3, 16, 16), random_tensor(5))
    with pytest.raises(
        InputError, match=r"^input 'factors' is 6 but the network was traced with 5; give it that shape$"
    ):
        net(random_tensor(4, 3, 16, 16), random_tensor(6))


def test_values_that_are_no_tensors_are_those_traced_with() -> None:
    class Switched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = conv(3, 4), conv(4, 4)

        def forward(self, x: Tensor, twice: bool, mask: Tensor | None = None) -> Tensor:
            x = F.relu(self.first(x))
            return self.second(x if mask is None else x * mask) * (2 if twice else 1)  # type: ignore[no-any-return]

    net = lm.trace(Switched(), (random_tensor(2, 3, 16, 16), True, None)).module
    net(random_tensor(1, 3, 16, 16), True, None)
    with pytest.raises(
        InputError, match=r"^input 'twice' is False but the network was traced with True; trace it with that value$"
    ):
        net(random_tensor(1, 3, 16, 16), False, None)
    with pytest.raises(
        InputError, match=r"^input 'mask' is a tensor of shape \(1,\) but the network was traced with None; "
    ):
        net(random_tensor(1, 3, 16, 16), True, torch.ones(1))


@pytest.mark.parametrize("suffix", [".onnx", ".pt2", ".safetensors"])
def test_export_refuses_inputs_of_another_size(tmp_path: Path, suffix: str) -> None:
    merged = lm.merge(lm.rewrite(zoo.traced("functional_relu"), []))
    with pytest.raises(
        ArtifactError, match=r"^the network does not run on these example inputs: input 'x' is 3x20x20 but the "
    ):
        lm.export(merged, tmp_path / f"model{suffix}", random_tensor(2, 3, 20, 20))
    assert list(tmp_path.iterdir()) == []


def test_a_file_holds_nothing_of_the_checks(tmp_path: Path) -> None:
    merged = lm.merge(lm.rewrite(zoo.traced("functional_relu"), []))
    graph = onnx.load(lm.export(merged, tmp_path / "model.onnx", random_tensor(2, 3, 16, 16))).graph
    assert [node.op_type for node in graph.node] == ["Conv", "Relu", "Conv", "Relu", "Conv"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_it_refuses_too() -> None:
    compiled = torch.compile(lm.merge(lm.rewrite(zoo.traced("functional_relu"), [])))
    assert compiled(random_tensor(2, 3, 16, 16)).shape == (2, 4, 16, 16)
    with pytest.raises(InputError, match=OTHER_SIZE):
        compiled(random_tensor(2, 3, 20, 20))
