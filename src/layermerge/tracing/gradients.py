"""Gradients: the lifted module learns what the user's model learns.

In: the outputs of both from one pass in train mode, which share no memory. Raises a `TraceError` that names the first parameter
whose gradient differs. Nothing is left in any `grad`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from layermerge.errors import TraceError, first_line

TOLERANCE = 1e-3
"""Far above what reordered float32 sums make of a backward pass, far below what a wrong gradient differs by."""
_NOISE = 1e-3
"""Gradients smaller than this part of the largest are rounding in places (the bias of a conv before a BatchNorm)."""


def compare_gradients(
    original: nn.Module, lifted: nn.Module, pairs: Sequence[tuple[Tensor, Tensor]], seed: int
) -> None:
    """Compares the gradients of all parameters that both have, for one random direction of the outputs."""
    try:
        expected = _gradients(original, [pair[0] for pair in pairs], seed)
    except RuntimeError:
        return  # it cannot be trained, so there is nothing to be equal to
    try:
        actual = _gradients(lifted, [pair[1] for pair in pairs], seed)
    except RuntimeError as error:
        raise TraceError(
            f"the lifted model has no backward pass, the original does: {first_line(error)}; trace a model that does not "
            "write to tensors which its backward pass needs"
        ) from error
    largest = max((gradient.abs().max().item() for gradient in expected.values() if gradient is not None), default=0.0)
    for name in expected:
        if name in actual and (difference := _difference(expected[name], actual[name], _NOISE * largest)):
            raise TraceError(
                f"the gradient of parameter '{name}' {difference} in train mode; what cuts or changes gradients "
                "(no_grad, detach, hooks, custom backward passes) must depend neither on the mode nor on values"
            )


def _gradients(module: nn.Module, outputs: Sequence[Tensor], seed: int) -> dict[str, Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    directions = [torch.randn(output.shape, generator=generator).to(output) for output in outputs]
    ways = [(out, way) for out, way in zip(outputs, directions, strict=True) if out.requires_grad]
    parameters = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    if not ways or not parameters:
        return dict.fromkeys(parameters)
    found = torch.autograd.grad(
        [out for out, _ in ways], list(parameters.values()), [way for _, way in ways], allow_unused=True
    )
    return dict(zip(parameters, found, strict=True))


def _difference(expected: Tensor | None, actual: Tensor | None, floor: float) -> str | None:
    """In words; a parameter without a gradient and one whose gradient is all zero learn the same."""
    if expected is None or actual is None:
        there = expected if actual is None else actual
        if there is None or not there.any():
            return None
        return "is missing" if actual is None else "should not be there"
    if torch.equal(expected, actual):
        return None  # as nearly all are: what follows takes several passes over them
    finite = expected.isfinite()
    if not torch.equal(finite, actual.isfinite()):
        return "is finite in other places than the original's"
    difference = (expected - actual)[finite].abs().max().item() if finite.any() else 0.0
    size = max(expected[finite].abs().max().item() if finite.any() else 0.0, floor)
    return f"differs by {difference / size:.1e} from the original's" if difference > TOLERANCE * size else None
