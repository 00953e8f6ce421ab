"""Free sizes: the lifted network is the model at every size the model takes, and what cannot be free is refused."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import free_sizes
import layermerge as lm
from agreement import to_double, worst
from layermerge.errors import InputError, TraceError
from layermerge.tracing.trace import Trace
from solutions import randomise
from zoo_registry import conv, random_tensor

cloudpickle = pytest.importorskip("cloudpickle")
EXACT = 1e-10
PLACE = r"test_free_sizes\.py:\d+"


@cache
def model_of(name: str) -> nn.Module:
    return randomise(free_sizes.build(name), 3)


@cache
def traced(name: str) -> Trace:
    return lm.trace(model_of(name), free_sizes.image(), free_size=True)


@pytest.mark.parametrize("name", free_sizes.NETWORKS)
def test_the_lifted_network_is_the_model_at_every_size(name: str) -> None:
    model, trace = model_of(name), traced(name)
    assert trace.free_size
    assert trace.module.free_size
    for high, wide in free_sizes.sizes(name):
        for batch in (1, 3):
            x = free_sizes.image(high, wide, batch)
            assert worst(model(x), trace.module(x)) <= 1e-6, (high, wide)


@pytest.mark.parametrize("name", free_sizes.NETWORKS)
def test_every_size_comes_from_an_input(name: str) -> None:
    """So that no feature map has a reader for its size alone, and no size goes stale when layers are removed."""
    reading = [node for node in traced(name).module.graph.nodes if "sym_size" in str(node.target)]
    assert all(node.args[0].op == "placeholder" for node in reading)


@pytest.mark.parametrize("name", free_sizes.NETWORKS)
def test_the_plan_is_that_of_the_traced_size(name: str) -> None:
    fixed = lm.trace(model_of(name), free_sizes.image())
    assert traced(name).layers == fixed.layers or name == "same padding"
    ours, theirs = lm.plan(traced(name)), lm.plan(fixed)
    assert [candidate.key for candidate in ours.candidates] == [
        c.key for c in theirs.candidates
    ] or name == "same padding"


def test_padding_by_size_may_stand_at_the_start_of_a_range_only() -> None:
    menu = lm.plan(traced("same padding"))
    names = [layer.name for layer in menu.layers]
    down = names.index("down")
    assert {(one.start, one.end) for one in menu.candidates if one.start <= down < one.end} == {
        (down, end) for end in range(down + 1, len(names) + 1)
    }
    across = next(one for one in menu.rejections if (one.start, one.end) == (down - 1, down + 1))
    assert across.reason == (
        "'first' and 'down' are not on one chain: pad in 'down' pads by what the input's size says, "
        "which only the start of a range can have"
    )


def test_sent_to_another_process_it_stays_free() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*LeafSpec.*", FutureWarning)  # torch's own
        there = cloudpickle.loads(cloudpickle.dumps(traced("pyramid")))
    assert there.free_size
    x = free_sizes.image(17, 9)
    assert worst(model_of("pyramid")(x), there.module(x)) <= 1e-6


def test_a_network_of_free_size_still_checks_what_is_fixed() -> None:
    net = traced("plain").module
    with pytest.raises(
        InputError, match=r"^input 'input' is 4x20x20 but the network was traced with 3xHxW; give it that shape$"
    ):
        net(torch.randn(2, 4, 20, 20))
    with pytest.raises(InputError, match=r"^input 'input' has 3 dimensions, but .* with 4; give a batch of 3xHxW$"):
        net(torch.randn(3, 20, 20))


# -- decisions by a size


class Net(nn.Module):
    """Two convs with a step of the test's own between them."""

    def __init__(self, between: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.first, self.second, self.between = conv(3, 4), conv(4, 4), between

    def forward(self, x: Tensor) -> Any:
        return self.second(self.between(self, F.relu(self.first(x))))


def free(between: Callable[[Any, Tensor], Any], *inputs: Tensor) -> Trace:
    return lm.trace(Net(between).eval(), inputs or free_sizes.image(), free_size=True)


def multiples_of_four(_net: Any, x: Tensor) -> Tensor:
    if x.shape[2] % 4 or x.shape[3] % 4:
        raise ValueError("sizes must be multiples of 4")
    return x


def odd_is_padded(_net: Any, x: Tensor) -> Tensor:
    return F.pad(x, (0, 0, 0, 1)) if x.shape[2] % 2 else x


def test_sizes_that_the_model_refuses_are_refused() -> None:
    trace = free(multiples_of_four)
    assert trace.module(free_sizes.image(20, 8)).shape == (2, 4, 20, 8)
    message = (
        rf"^input 'x' is 3x20x10 but the network was traced for sizes where \(W % 4\) == 0: forward\(\), at {PLACE} "
    )
    for net in (trace.module, lm.merge(lm.rewrite(trace, []))):
        with pytest.raises(InputError, match=message):
            net(free_sizes.image(20, 10))


def test_what_batch_and_size_decide_together_is_a_condition_too() -> None:
    def few(_net: Any, x: Tensor) -> Tensor:
        return x if x.numel() < 100_000 else x + 1

    net = free(few).module
    net(free_sizes.image(32, 40, batch=3))
    with pytest.raises(
        InputError, match=r"^input 'x' is 3x32x40 but the network was traced for sizes where .*N.* < 100000"
    ):
        net(free_sizes.image(32, 40, batch=30))


def test_a_decision_by_the_batch_of_another_input_is_a_condition_too() -> None:
    class Timed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = conv(3, 4), conv(4, 4)

        def forward(self, x: Tensor, times: Tensor) -> Tensor:
            x = F.relu(self.first(x))
            return self.second(x if times.shape[0] * x.shape[2] < 1000 else x + 1)  # type: ignore[no-any-return]

    net = lm.trace(Timed().eval(), (free_sizes.image(), torch.zeros(2)), free_size=True).module
    net(free_sizes.image(32, 9, batch=3), torch.zeros(3))
    with pytest.raises(InputError, match=r"^input 'x' is 3x32x9 but the network was traced for sizes where .* < 1000"):
        net(free_sizes.image(32, 9, batch=40), torch.zeros(40))


def test_a_decision_survives_being_traced_again() -> None:
    once = free(multiples_of_four)
    again = lm.trace(lm.merge(lm.rewrite(once, [])), free_sizes.image(), free_size=True)
    with pytest.raises(
        InputError, match=r"is 3x20x10 but the network was traced for sizes where \(W % 4\) == 0; resize the input$"
    ):
        again.module(free_sizes.image(20, 10))


def test_sizes_at_which_forward_does_something_else_are_refused_with_a_warning() -> None:
    with pytest.warns(
        UserWarning, match=r"^some sizes that the model takes are refused: input 'x' is 3x17x19 .* \(H % 2\) == 0"
    ):
        trace = free(odd_is_padded)
    assert trace.module(free_sizes.image(18, 7)).shape == (2, 4, 18, 7)
    with pytest.raises(InputError, match="decides by it; resize the input"):
        trace.module(free_sizes.image(19, 7))


def test_inputs_whose_sizes_belong_together() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fine, self.coarse = conv(3, 4), conv(1, 4)

        def forward(self, image: Tensor, depth: Tensor) -> Tensor:
            return self.fine(image) + F.interpolate(self.coarse(depth), scale_factor=2)  # type: ignore[no-any-return]

    model = Two().eval()
    trace = lm.trace(model, (random_tensor(2, 3, 16, 16), random_tensor(2, 1, 8, 8)), free_size=True)
    inputs = random_tensor(3, 3, 20, 12), random_tensor(3, 1, 10, 6)
    assert worst(model(*inputs), trace.module(*inputs)) <= 1e-6


def test_a_map_of_a_value_a_channel_is_no_image() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = conv(3, 4), conv(4, 4)

        def forward(self, image: Tensor, shift: Tensor) -> Tensor:
            return self.second(F.relu(self.first(image) + shift))  # type: ignore[no-any-return]

    model = Shifted().eval()
    trace = lm.trace(model, (free_sizes.image(), random_tensor(2, 4, 1, 1)), free_size=True)
    inputs = free_sizes.image(9, 14), random_tensor(2, 4, 1, 1)
    assert worst(model(*inputs), trace.module(*inputs)) <= 1e-6


# -- what cannot be free


def to_a_number(_net: Any, x: Tensor) -> Tensor:
    return F.interpolate(x, size=(int(x.shape[2] * 0.5), x.shape[3] // 2))


@pytest.mark.parametrize(
    ("between", "message"),
    [
        (
            lambda _net, x: x if x.shape[2] == 16 else x + 1,
            rf"^free_size: H of input 'x' is fixed to 16 by forward\(\), at {PLACE} \(.*\); compute it from the input's shape,",
        ),
        (
            lambda _net, x: x + sum(range(x.shape[3])),
            rf"^free_size: W of input 'x' is fixed to 16 by forward\(\), at {PLACE} \(.*\); compute it from the input's shape,",
        ),
        (
            lambda _net, x: x + torch.ones(1, 4, 16, 16),
            r"^free_size: H of input 'x' is fixed to 16 by add; compute it from the input's shape, or trace without free_size$",
        ),
        (
            to_a_number,
            rf"^free_size: height and width are not free: input 'x' is 3x32x16 but .* == 8: forward\(\), at {PLACE} ",
        ),
        (
            lambda _net, x: x if round(x.shape[3] / 3) == 5 else x + 1,
            r"^free_size: a size is computed as RoundToInt\(.*\), which cannot be written into a graph; compute ",
        ),
    ],
)
def test_what_fixes_a_size_is_named(between: Callable[[Any, Tensor], Any], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        free(between)


def test_a_classifier_behind_flatten_is_named() -> None:
    model = nn.Sequential(conv(3, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 256, 5))
    message = (
        r"^free_size: the model takes no other size than 16x16, linear fixes it: mat1 and mat2 shapes cannot be multiplied "
        r".*; in '3', at .*; pool to a fixed size before it \(nn\.AdaptiveAvgPool2d\), or trace without free_size$"
    )
    with pytest.raises(TraceError, match=message):
        lm.trace(model, free_sizes.image(), free_size=True)


def test_a_size_that_decides_at_every_other_size() -> None:
    def small(_net: Any, x: Tensor) -> Tensor:
        return x if x.shape[2] * x.shape[3] < 18 * 18 else x + 1

    with pytest.raises(
        TraceError, match=r"^free_size: height and width are not free: input 'x' is 3x32x16 but .* or trace without"
    ):
        free(small)


def test_a_network_traced_with_fixed_size_cannot_become_free() -> None:
    fixed = lm.trace(model_of("plain"), free_sizes.image())
    with pytest.raises(
        TraceError, match=r"H of input 'input' is fixed to 16 by the network, which was traced with that size; "
    ):
        lm.trace(fixed.module, free_sizes.image(), free_size=True)


def test_a_strided_conv_on_a_single_pixel_needs_a_larger_input() -> None:
    model = nn.Sequential(conv(3, 4, stride=4), nn.ReLU(), conv(4, 4, stride=2)).eval()
    with pytest.raises(
        TraceError,
        match=r"^free_size: '2' keeps the size of its input only where that is 1x1; trace with a larger input$",
    ):
        lm.trace(model, free_sizes.image(4, 4), free_size=True)


def test_inputs_without_height_and_width() -> None:
    class Lifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = conv(1, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.first(x[:, None])  # type: ignore[no-any-return]

    with pytest.raises(
        TraceError, match=r"^free_size: no input has a height and a width; pass a batch of images, such as "
    ):
        lm.trace(Lifted(), torch.randn(2, 16, 16), free_size=True)


# -- float64


@pytest.mark.parametrize("name", ["averaged", "same padding", "pyramid"])
def test_it_can_be_widened(name: str) -> None:
    model, net = model_of(name), lm.rewrite(traced(name), [])
    x = to_double(free_sizes.image(13, 22))
    assert worst(copy.deepcopy(model).double()(x), net.double()(x)) <= EXACT
