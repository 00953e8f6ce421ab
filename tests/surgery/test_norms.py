"""Folding a norm into a scale and a shift, and those into a conv, against torch's own BatchNorm in float64."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from layermerge.surgery.kernels import fold_affine, norm_as_affine
from oracles import relative_difference

EXACT = 1e-12


def random_norm(channels: int, eps: float, affine: bool, seed: int) -> nn.BatchNorm2d:
    generator = torch.Generator().manual_seed(seed)
    norm = nn.BatchNorm2d(channels, eps=eps, affine=affine).eval()
    assert norm.running_mean is not None
    assert norm.running_var is not None
    with torch.no_grad():
        norm.running_mean.copy_(torch.randn(channels, generator=generator))
        norm.running_var.copy_(torch.rand(channels, generator=generator) * 2)
        for parameter in norm.parameters():
            parameter.copy_(torch.randn(channels, generator=generator))
    return norm


def as_affine(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return norm_as_affine(norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias)


norms = st.builds(
    random_norm,
    channels=st.integers(1, 6),
    eps=st.sampled_from([1e-5, 1e-3, 1e-1, 0.0]),
    affine=st.booleans(),
    seed=st.integers(0, 10**6),
)


@given(norm=norms)
def test_scale_and_shift_do_what_the_norm_does(norm: nn.BatchNorm2d) -> None:
    x = torch.randn(2, norm.num_features, 3, 4, dtype=torch.float64)
    scale, shift = as_affine(norm)
    assert scale.dtype == shift.dtype == torch.float64
    expected = norm.double()(x)
    assert relative_difference(expected, x * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)) <= EXACT


@given(norm=norms, bias=st.booleans(), groups=st.sampled_from([1, 2]), seed=st.integers(0, 10**6))
def test_a_norm_folded_into_a_conv(norm: nn.BatchNorm2d, bias: bool, groups: int, seed: int) -> None:
    torch.manual_seed(seed)
    outs = norm.num_features
    groups = groups if outs % groups == 0 else 1
    conv = nn.Conv2d(2 * groups, outs, 3, padding=1, groups=groups, bias=bias)
    weight, offset = fold_affine(conv.weight, conv.bias, *as_affine(norm))
    assert weight.dtype == offset.dtype == torch.float64
    x = torch.randn(2, 2 * groups, 5, 6, dtype=torch.float64)
    expected = norm.double()(conv.double()(x))
    assert relative_difference(expected, F.conv2d(x, weight, offset, padding=1, groups=groups)) <= EXACT


def test_another_eps_is_another_norm() -> None:
    """Small variances: an eps of 1e-3 taken for 1e-5 is wrong by far more than rounding."""
    variance = torch.full((3,), 1e-3)
    right, _ = norm_as_affine(torch.zeros(3), variance, 1e-3)
    wrong, _ = norm_as_affine(torch.zeros(3), variance, 1e-5)
    assert relative_difference(right, wrong) > 0.3
    assert torch.allclose(right, torch.full((3,), 2e-3, dtype=torch.float64).rsqrt(), rtol=1e-6)


def test_arithmetic_is_in_float64() -> None:
    """In float32 the sum of this variance and eps would be the variance alone."""
    scale, _ = norm_as_affine(torch.zeros(1), torch.ones(1), 1e-9)
    assert scale.item() != 1.0
    assert abs(scale.item() - (1 + 1e-9) ** -0.5) < 1e-15


def test_the_given_tensors_stay_as_they_are() -> None:
    norm = random_norm(3, 1e-5, True, 1)
    conv = nn.Conv2d(2, 3, 3)
    assert conv.bias is not None
    before = [tensor.clone() for tensor in (conv.weight, conv.bias, norm.weight, norm.bias)]
    fold_affine(conv.weight, conv.bias, *as_affine(norm))
    after = (conv.weight, conv.bias, norm.weight, norm.bias)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
