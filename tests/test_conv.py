"""Geometry against what torch computes: sizes, merged kernels with borders, groups, every error."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st

from layermerge.conv import ConvSpec, Pair, Sides, compose, parallel
from layermerge.errors import GeometryError, LayerMergeError
from oracles import Conv, grouped_kernel, impulse_kernel, pad, placed_kernel, relative_difference

CHANNELS = (1, 2, 4, 6)


@st.composite
def specs(
    draw: st.DrawFn, in_channels: int | None = None, out_channels: int | None = None, stride: Pair | None = None
) -> ConvSpec:
    """Any small conv: asymmetric kernels and padding, strides, dilation, groups up to depthwise."""
    ins = in_channels or draw(st.sampled_from(CHANNELS))
    outs = out_channels or draw(st.sampled_from(CHANNELS))
    divisors = [count for count in (1, 2, 3, 4, 6) if ins % count == 0 and outs % count == 0]
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    # A 1-wide kernel has nothing to dilate.
    dilation = tuple(draw(st.integers(1, 2)) if size > 1 else 1 for size in kernel)
    side = st.integers(0, 2)
    return ConvSpec(
        ins,
        outs,
        kernel,
        stride or draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        draw(st.tuples(side, side, side, side)),
        (dilation[0], dilation[1]),
        draw(st.sampled_from(divisors)),
    )


def image(channels: int, height: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(2, channels, height, width, dtype=torch.float64, generator=generator)


def shortcut_beside(body: ConvSpec, drawn: ConvSpec, size: Pair) -> ConvSpec:
    """The drawn conv with the bottom and right padding that gives it the body's output size."""
    backs = []
    for axis in (0, 1):
        wanted = (body.output_size(*size)[axis] - 1) * body.stride[axis] + (drawn.kernel[axis] - 1) * drawn.dilation[
            axis
        ]
        backs.append(wanted + 1 - size[axis] - drawn.padding[2 * axis])
    # A negative back means rows that the last output leaves unread; at stride 1 there is no such room.
    assume(all(back > -body.stride[axis] for axis, back in enumerate(backs)))
    top, _, left, _ = drawn.padding
    return replace(drawn, padding=(top, max(0, backs[0]), left, max(0, backs[1])))


def check_series(first: ConvSpec, second: ConvSpec, size: Pair = (23, 26)) -> ConvSpec:
    """The composed conv computes what both compute on the input padded once; returns its geometry."""
    merged = compose(first, second)
    one, two = Conv.random(first, 1), Conv.random(second, 2)
    x = image(first.in_channels, *size)
    front_padded = pad(x, merged.padding)
    expected = two.valid(one.valid(front_padded))
    kernel = grouped_kernel(impulse_kernel([one, two]), merged)
    actual = F.conv2d(front_padded, kernel, None, merged.stride, 0, merged.dilation, merged.groups)
    assert relative_difference(expected, actual) <= 1e-10
    stepwise = two.padded(one.padded(x))
    assert merged.output_size(*size) == tuple(stepwise.shape[2:]) == tuple(actual.shape[2:])
    return merged


@given(specs(), st.integers(12, 20), st.integers(12, 20))
def test_output_size_is_that_of_torch(spec: ConvSpec, height: int, width: int) -> None:
    computed = Conv.random(spec, 0).padded(image(spec.in_channels, height, width))
    assert spec.output_size(height, width) == tuple(computed.shape[2:])


@given(st.data())
def test_series_equals_one_conv_borders_included(data: st.DataObject) -> None:
    first = data.draw(specs())
    check_series(first, data.draw(specs(in_channels=first.out_channels)))


@given(st.data())
def test_padding_of_the_series_is_where_torch_reads_zeros(data: st.DataObject) -> None:
    """Where no output reads the second conv's padding, padding stepwise and padding once agree."""
    first = data.draw(specs())
    second = data.draw(specs(in_channels=first.out_channels))
    merged = compose(first, second)
    one, two = Conv.random(first, 1), Conv.random(second, 2)
    x = image(first.in_channels, 30, 30)
    stepwise, at_once = two.padded(one.padded(x)), two.valid(one.valid(pad(x, merged.padding)))
    inner = (..., slice(2, -2), slice(2, -2))
    assume(stepwise[inner].numel() > 0)
    assert relative_difference(stepwise[inner], at_once[inner]) <= 1e-10


@given(st.data())
def test_side_by_side_equals_one_conv_borders_included(data: st.DataObject) -> None:
    body = data.draw(specs())
    size = (17, 18)
    shortcut = shortcut_beside(body, data.draw(specs(body.in_channels, body.out_channels, body.stride)), size)
    merged = parallel(body, shortcut)
    own, other = Conv.random(body, 1), Conv.random(shortcut, 2)
    x = image(body.in_channels, *size)
    expected = own.padded(x) + other.padded(x)
    front = (merged.padding[0], merged.padding[2])
    span = tuple((k - 1) * d + 1 for k, d in zip(merged.kernel, merged.dilation, strict=True))
    dense = placed_kernel(own, front, (span[0], span[1])) + placed_kernel(other, front, (span[0], span[1]))
    kernel = grouped_kernel(dense, merged)
    actual = F.conv2d(pad(x, merged.padding), kernel, None, merged.stride, 0, merged.dilation, merged.groups)
    assert relative_difference(expected, actual) <= 1e-10
    assert merged.output_size(*size) == tuple(expected.shape[2:])


@given(st.data())
def test_compose_is_associative(data: st.DataObject) -> None:
    first = data.draw(specs())
    second = data.draw(specs(in_channels=first.out_channels))
    third = data.draw(specs(in_channels=second.out_channels))
    assert compose(compose(first, second), third) == compose(first, compose(second, third))


@given(specs())
def test_identity_is_neutral(spec: ConvSpec) -> None:
    assert compose(ConvSpec.identity(spec.in_channels), spec) == spec
    assert compose(spec, ConvSpec.identity(spec.out_channels)) == spec


@pytest.mark.parametrize(
    ("first", "second", "kernel", "stride", "padding", "dilation", "groups"),
    [
        pytest.param(
            ConvSpec(4, 4, (1, 7), padding=(0, 0, 3, 3)), ConvSpec(4, 4, (7, 1), padding=(3, 3, 0, 0)),
            (7, 7), (1, 1), (3, 3, 3, 3), (1, 1), 1, id="1x7 then 7x1",
        ),
        pytest.param(
            ConvSpec(4, 4, (3, 3), (2, 2), (1, 1, 1, 1)), ConvSpec(4, 4, (3, 3), padding=(1, 1, 1, 1)),
            (7, 7), (2, 2), (3, 3, 3, 3), (1, 1), 1, id="the second kernel is spread by the first stride",
        ),
        pytest.param(
            ConvSpec(4, 4, (3, 3), groups=4), ConvSpec(4, 4, (5, 5), groups=4),
            (7, 7), (1, 1), (0, 0, 0, 0), (1, 1), 4, id="depthwise stays depthwise",
        ),
        pytest.param(
            ConvSpec(4, 4, (1, 1)), ConvSpec(4, 4, (3, 3), groups=4),
            (3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1, id="pointwise then depthwise is dense",
        ),
        pytest.param(
            ConvSpec(12, 12, (3, 3), groups=4), ConvSpec(12, 12, (1, 1), groups=6),
            (3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 2, id="groups share their greatest divisor",
        ),
        pytest.param(
            ConvSpec(2, 2, (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2)), ConvSpec(2, 2, (1, 1)),
            (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 1, id="dilated then 1x1 stays dilated",
        ),
        pytest.param(
            ConvSpec(2, 2, (3, 3), dilation=(2, 2)), ConvSpec(2, 2, (3, 3)),
            (7, 7), (1, 1), (0, 0, 0, 0), (1, 1), 1, id="dilated then 3x3 is dense",
        ),
        pytest.param(
            ConvSpec(2, 2, (3, 3), (2, 2), (0, 1, 0, 1)), ConvSpec(2, 2, (1, 1), padding=(0, 1, 1, 0)),
            (3, 3), (2, 2), (0, 3, 2, 1), (1, 1), 1, id="asymmetric padding is scaled by the stride it crosses",
        ),
    ],
)  # fmt: skip
def test_known_series(
    first: ConvSpec, second: ConvSpec, kernel: Pair, stride: Pair, padding: Sides, dilation: Pair, groups: int
) -> None:
    merged = check_series(first, second)
    assert merged == ConvSpec(first.in_channels, second.out_channels, kernel, stride, padding, dilation, groups)


def test_side_by_side_takes_the_aligned_union() -> None:
    body = ConvSpec(4, 4, (3, 3), (2, 2), (0, 1, 0, 1))  # 'same' padding of an even map: the tap is not the centre
    assert parallel(body, ConvSpec(4, 4, (1, 1), (2, 2))) == body
    wide = ConvSpec(4, 4, (1, 5), padding=(0, 0, 2, 2))
    tall = ConvSpec(4, 4, (3, 1), padding=(1, 1, 0, 0))
    assert parallel(wide, tall) == ConvSpec(4, 4, (3, 5), padding=(1, 1, 2, 2))


def test_side_by_side_of_depthwise_convs_stays_depthwise() -> None:
    body = ConvSpec(4, 4, (3, 3), padding=(1, 1, 1, 1), groups=4)
    assert parallel(body, ConvSpec.identity(4)) == body
    assert parallel(body, ConvSpec(4, 4, (1, 1))).groups == 1


@pytest.mark.parametrize(
    ("spec", "text", "depthwise", "strided", "weights"),
    [
        (ConvSpec(8, 8, (3, 3)), "3x3", False, False, 576),
        (ConvSpec(8, 16, (3, 5), (2, 2)), "3x5/2", False, True, 1920),
        (ConvSpec(8, 8, (3, 3), (1, 2)), "3x3/1x2", False, True, 576),
        (ConvSpec(8, 8, (3, 3), dilation=(2, 2)), "3x3 d2", False, False, 576),
        (ConvSpec(8, 8, (3, 3), groups=8), "3x3 dw", True, False, 72),
        (ConvSpec(8, 16, (1, 1), groups=4), "1x1 g4", False, False, 32),
    ],
)
def test_description(spec: ConvSpec, text: str, depthwise: bool, strided: bool, weights: int) -> None:
    assert (str(spec), spec.depthwise, spec.strided, spec.weights) == (text, depthwise, strided, weights)


def test_extra_padding_is_added_per_side() -> None:
    assert ConvSpec(1, 1, (3, 3), padding=(1, 2, 3, 4)).padded((4, 3, 2, 1)).padding == (5, 5, 5, 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"in_channels": 0}, "must be at least 1"),
        ({"kernel": (0, 3)}, "must be at least 1"),
        ({"stride": (1, 0)}, "must be at least 1"),
        ({"dilation": (0, 1)}, "must be at least 1"),
        ({"groups": 0}, "must be at least 1"),
        ({"padding": (0, 0, -1, 0)}, "padding must not be negative"),
        ({"groups": 3}, "3 groups do not divide 4 -> 4 channels"),
    ],
)
def test_impossible_convs_are_refused(arguments: dict[str, object], message: str) -> None:
    plain: dict[str, object] = {"in_channels": 4, "out_channels": 4, "kernel": (3, 3)}
    with pytest.raises(GeometryError, match=message):
        ConvSpec(**{**plain, **arguments})  # type: ignore[arg-type]


def test_convs_that_do_not_fit_together_are_refused() -> None:
    narrow, wide = ConvSpec(4, 4, (3, 3)), ConvSpec(8, 8, (3, 3))
    with pytest.raises(GeometryError, match="4 channels come out, 8 are expected"):
        compose(narrow, wide)
    with pytest.raises(GeometryError, match="channels differ side by side"):
        parallel(narrow, wide)
    with pytest.raises(GeometryError, match="strides 1 and 2 run side by side"):
        parallel(narrow, ConvSpec(4, 4, (3, 3), (2, 2)))


def test_a_geometry_error_is_a_value_error_of_ours() -> None:
    assert issubclass(GeometryError, LayerMergeError)
    assert issubclass(GeometryError, ValueError)
