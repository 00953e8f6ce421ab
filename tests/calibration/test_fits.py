"""Fits against numpy's lstsq over dense rows, and against known answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from layermerge.calibration import fits
from layermerge.calibration.fits import (
    Effort,
    Moments,
    Seen,
    apply_kernel,
    at_places,
    best_correction,
    blocks,
    choose_form,
    corrected,
    solve_ridge,
)
from layermerge.conv import ConvSpec
from layermerge.surgery.kernels import Kernel
from layermerge.surgery.rewrite import FitForm

SPECS = {
    "plain": ConvSpec(3, 4, (3, 3), padding=(1, 1, 1, 1)),
    "strided": ConvSpec(3, 4, (3, 3), stride=(2, 2), padding=(1, 1, 1, 1)),
    "strided over a rest": ConvSpec(3, 4, (2, 3), stride=(3, 2)),
    "grouped": ConvSpec(4, 6, (3, 3), padding=(1, 1, 1, 1), groups=2),
    "depthwise": ConvSpec(5, 5, (3, 3), padding=(1, 1, 1, 1), groups=5),
    "dilated": ConvSpec(2, 3, (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2)),
    "asymmetric": ConvSpec(3, 4, (4, 2), padding=(2, 1, 0, 1)),
    "pointwise": ConvSpec(4, 4, (1, 1)),
}


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def kernel_of(spec: ConvSpec, seed: int = 0) -> Kernel:
    weight = random(spec.out_channels, spec.in_channels // spec.groups, *spec.kernel, seed=seed)
    return Kernel(weight, random(spec.out_channels, seed=seed + 1), spec)


def moments_of(kernel: Kernel, form: FitForm, x: Tensor, target: Tensor, factors: Tensor | None = None) -> Moments:
    moments = Moments()
    output = apply_kernel(kernel, x, {})
    everywhere = torch.arange(output[0, 0].numel())
    flat, residual = at_places(output, everywhere), at_places(target - output, everywhere)
    counted = None if factors is None else at_places(factors, everywhere)
    for block in blocks(form, kernel.spec, x, Seen(everywhere, flat, residual, counted)):
        moments.add(block)
    return moments


def by_lstsq(
    kernel: Kernel, x: Tensor, target: Tensor, ridge: float, factors: Tensor | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Weight and bias from dense rows, one output at a time, ridge rows pulling toward the kernel."""
    each = np.ones((target[:, 0].numel(), 1)) if factors is None else factors.reshape(-1, 1).sqrt().numpy()
    spec = kernel.spec
    top, bottom, left, right = spec.padding
    columns = F.unfold(F.pad(x, (left, right, top, bottom)), spec.kernel, spec.dilation, 0, spec.stride)
    inside, outside = spec.in_channels // spec.groups, spec.out_channels // spec.groups
    size = inside * spec.kernel[0] * spec.kernel[1]
    weight, bias = np.empty((spec.out_channels, size)), np.empty(spec.out_channels)
    for out in range(spec.out_channels):
        group = out // outside
        rows = each * columns[:, group * size : (group + 1) * size].transpose(1, 2).reshape(-1, size).numpy()
        pull = np.sqrt(ridge * (rows**2).sum(0).mean()) * np.eye(size, size + 1)
        dense = np.concatenate([np.concatenate([rows, each], 1), pull])
        wanted = np.concatenate(
            [each[:, 0] * target[:, out].reshape(-1).numpy(), pull[:, :-1] @ kernel.weight[out].reshape(-1).numpy()]
        )
        answer = np.linalg.lstsq(dense, wanted, rcond=None)[0]
        weight[out], bias[out] = answer[:-1], answer[-1]
    return weight.reshape(kernel.weight.shape), bias


@pytest.mark.parametrize("ridge", [0.0, 1e-2, 1.0])
@pytest.mark.parametrize("name", SPECS)
def test_a_fit_is_that_of_lstsq(name: str, ridge: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fits, "_BLOCK", 700)  # several blocks a batch
    spec = SPECS[name]
    kernel, x = kernel_of(spec), random(6, spec.in_channels, 9, 8, seed=5)
    target = random(6, spec.out_channels, *spec.output_size(9, 8), seed=6)
    found = corrected(kernel, "kernel", solve_ridge(moments_of(kernel, "kernel", x, target), ridge))
    weight, bias = by_lstsq(kernel, x, target, ridge)
    np.testing.assert_allclose(found.weight.numpy(), weight, atol=1e-9)
    np.testing.assert_allclose(found.bias.numpy(), bias, atol=1e-9)


@pytest.mark.parametrize("ridge", [0.0, 1e-2])
@pytest.mark.parametrize("name", SPECS)
def test_a_fit_whose_places_count_differently_is_that_of_weighted_lstsq(
    name: str, ridge: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fits, "_BLOCK", 700)
    spec = SPECS[name]
    kernel, x = kernel_of(spec), random(6, spec.in_channels, 9, 8, seed=5)
    size = spec.output_size(9, 8)
    target, factors = random(6, spec.out_channels, *size, seed=6), random(6, 1, *size, seed=7).square() + 0.1
    moments = moments_of(kernel, "kernel", x, target, factors)
    found = corrected(kernel, "kernel", solve_ridge(moments, ridge))
    weight, bias = by_lstsq(kernel, x, target, ridge, factors)
    np.testing.assert_allclose(found.weight.numpy(), weight, atol=1e-9)
    np.testing.assert_allclose(found.bias.numpy(), bias, atol=1e-9)
    left = (target - apply_kernel(kernel, x, {})).square() * factors
    assert moments.error() == pytest.approx(float(left.sum()))


@pytest.mark.parametrize("form", ["mixing", "affine"])
def test_smaller_forms_count_places_too(form: FitForm) -> None:
    """Twice the factor is the same as the image twice."""
    spec = SPECS["plain"]
    kernel, x, target = kernel_of(spec), random(4, 3, 9, 8, seed=5), random(4, 4, 9, 8, seed=6)
    factors = torch.ones(4, 1, 9, 8, dtype=torch.float64)
    factors[1] = 2.0
    more = [0, 1, 1, 2, 3]
    once, twice = moments_of(kernel, form, x, target, factors), moments_of(kernel, form, x[more], target[more])
    torch.testing.assert_close(solve_ridge(once, 1e-3), solve_ridge(twice, 1e-3), atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", SPECS)
def test_a_conv_is_found_from_what_it_computes(name: str) -> None:
    spec = SPECS[name]
    truth, x = kernel_of(spec, seed=3), random(12, spec.in_channels, 9, 8, seed=7)
    start = kernel_of(spec, seed=9)
    found = corrected(start, "kernel", solve_ridge(moments_of(start, "kernel", x, apply_kernel(truth, x, {})), 0.0))
    torch.testing.assert_close(found.weight, truth.weight, atol=1e-9, rtol=0)
    torch.testing.assert_close(found.bias, truth.bias, atol=1e-9, rtol=0)


@pytest.mark.parametrize("form", ["kernel", "mixing", "affine"])
@pytest.mark.parametrize("name", SPECS)
def test_what_is_right_already_stays_to_the_bit(name: str, form: FitForm) -> None:
    spec = SPECS[name]
    kernel, x = kernel_of(spec), random(6, spec.in_channels, 9, 8, seed=5)
    moments = moments_of(kernel, form, x, apply_kernel(kernel, x, {}))
    assert best_correction(moments, moments) is None
    assert not solve_ridge(moments, 1e-4).any()


@pytest.mark.parametrize("name", ["plain", "grouped", "depthwise", "asymmetric"])
def test_a_mixing_behind_the_kernel_and_an_affine_are_found(name: str) -> None:
    spec = SPECS[name]
    start, x = kernel_of(spec), random(12, spec.in_channels, 9, 8, seed=7)
    mixing = kernel_of(ConvSpec(spec.out_channels, spec.out_channels, (1, 1), groups=spec.groups), seed=4)
    truths: dict[FitForm, Kernel] = {
        "mixing": start.then(mixing),
        "affine": start.scaled(random(spec.out_channels, seed=1), random(spec.out_channels, seed=2)),
    }
    for form, truth in truths.items():
        moments = moments_of(start, form, x, apply_kernel(truth, x, {}))
        found = corrected(start, form, solve_ridge(moments, 0.0))
        assert found.spec == spec
        torch.testing.assert_close(found.weight, truth.weight, atol=1e-9, rtol=0)
        torch.testing.assert_close(found.bias, truth.bias, atol=1e-9, rtol=0)


def test_errors_are_those_of_the_corrected_kernel() -> None:
    spec = SPECS["grouped"]
    kernel, x = kernel_of(spec), random(6, spec.in_channels, 9, 8, seed=5)
    target = random(6, spec.out_channels, 9, 8, seed=6)
    moments = moments_of(kernel, "kernel", x, target)
    correction = solve_ridge(moments, 1e-2)
    for one, given in ((kernel, None), (corrected(kernel, "kernel", correction), correction)):
        error = float((apply_kernel(one, x, {}) - target).square().sum())
        assert moments.error(given) == pytest.approx(error, rel=1e-10)


def test_the_ridge_is_chosen_on_held_out_places_and_a_fit_that_does_not_help_is_none() -> None:
    spec = SPECS["plain"]
    kernel, x, noise = kernel_of(spec), random(1, 3, 6, 6, seed=5), random(1, 4, 6, 6, seed=6)
    fitted = moments_of(kernel, "kernel", x, apply_kernel(kernel, x, {}) + noise)
    other = random(8, 3, 6, 6, seed=8)
    held_out = moments_of(kernel, "kernel", other, apply_kernel(kernel, other, {}) + 0.1)
    chosen = best_correction(fitted, held_out, ridges=(1e-6, 1e6))
    assert chosen is None or torch.equal(chosen, solve_ridge(fitted, 1e6))
    assert best_correction(fitted, moments_of(kernel, "kernel", other, apply_kernel(kernel, other, {}))) is None


@pytest.mark.parametrize("seed", range(20))
def test_where_nothing_is_left_rounding_makes_no_error_negative(seed: int) -> None:
    start, truth = kernel_of(SPECS["pointwise"], seed=seed), kernel_of(SPECS["pointwise"], seed=seed + 50)
    x = random(6, 4, 9, 8, seed=seed + 99)
    moments = moments_of(start, "kernel", x, apply_kernel(truth, x, {}))
    correction = best_correction(moments, moments)
    assert correction is not None
    assert moments.error(correction) >= 0
    torch.testing.assert_close(corrected(start, "kernel", correction).weight, truth.weight, atol=1e-4, rtol=0)


def test_features_that_are_zero_everywhere_leave_their_weights_alone() -> None:
    spec = SPECS["depthwise"]
    kernel, x = kernel_of(spec), random(6, 5, 9, 8, seed=5)
    x[:, 2] = 0
    target = apply_kernel(kernel_of(spec, seed=3), x, {})
    found = corrected(kernel, "kernel", solve_ridge(moments_of(kernel, "kernel", x, target), 0.0))
    torch.testing.assert_close(found.weight[2], kernel.weight[2])
    torch.testing.assert_close(apply_kernel(found, x, {}), target, atol=1e-8, rtol=0)


@pytest.mark.parametrize(
    ("spec", "places", "form"),
    [
        (ConvSpec(455, 8, (3, 3)), 10**6, "kernel"),
        (ConvSpec(456, 8, (3, 3)), 10**6, "mixing"),
        (ConvSpec(960, 960, (5, 5)), 10**6, "mixing"),
        (ConvSpec(960, 960, (5, 5), groups=960), 10**6, "kernel"),
        (ConvSpec(8192, 64, (1, 1), groups=2), 10**6, "mixing"),
        (ConvSpec(8, 8192, (1, 1)), 10**6, "kernel"),
        (ConvSpec(8192, 8192, (1, 1)), 10**6, "affine"),
        (ConvSpec(64, 64, (3, 3)), 500, "mixing"),
        (ConvSpec(64, 64, (3, 3)), 100, "affine"),
    ],
)
def test_the_form_keeps_the_gram_matrix_small_and_the_unknowns_fewer_than_the_places(
    spec: ConvSpec, places: int, form: str
) -> None:
    assert choose_form(spec, places, Effort()) == form
