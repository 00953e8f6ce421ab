"""The 35.7M-parameter network that the paper compresses (the layout of google/ddpm-cifar10-32), merged at its true size."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor

import layermerge as lm
import real_networks
from agreement import worst
from diffusion.stock import ROUNDED, noisy, told
from solutions import random_solution

ANY_SIZE = 10**9
SOLUTIONS = 20
THROUGH_ONNX = 3


def ddpm() -> tuple[Any, lm.Trace]:
    """The network and its trace; tests leave both as they are."""
    seen = real_networks.observed("diffusers:ddpm")
    return seen.original, seen.trace


def solution_of(seed: int) -> tuple[lm.Candidate, ...]:
    """By turns from the paper's own 98 entries and from our larger menu; no kernel is too large to be chosen."""
    _, trace = ddpm()
    menu = lm.plan(trace, lm.Rules.paper() if seed % 2 == 0 else lm.Rules())
    return random_solution(menu, random.Random(seed), max_weights=ANY_SIZE)


def check(seed: int) -> tuple[Any, Tensor]:
    """Merges a random solution and holds it to the library's own modules; returns it and what it has to return."""
    model, trace = ddpm()
    solution = solution_of(seed)
    rewritten = lm.rewrite(trace, solution).eval()
    merged = lm.merge(rewritten)
    with torch.no_grad():
        expected = told(model, solution)(*noisy(3, 32)).sample
        assert worst(expected, rewritten(*noisy(3, 32)).sample) <= ROUNDED
        assert worst(expected, merged(*noisy(3, 32)).sample) <= ROUNDED
        assert worst(model(*noisy(3, 32)).sample, expected) > 1e-2
    return merged, expected


@pytest.mark.slow
def test_a_random_solution_merges_exactly() -> None:
    """A solution with a kernel that no smaller network has."""
    model, _ = ddpm()
    assert sum(parameter.numel() for parameter in model.parameters()) == real_networks.DDPM_PARAMETERS
    assert any(candidate.spec is not None and candidate.spec.weights > 3_000_000 for candidate in solution_of(1))
    check(1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SOLUTIONS))
def test_twenty_random_solutions_merge_exactly(seed: int, tmp_path: Path) -> None:
    """The first three also leave as ONNX, and onnxruntime agrees with diffusers, at another batch size."""
    merged, expected = check(seed)
    if seed >= THROUGH_ONNX:
        return
    file = lm.export(merged, tmp_path / "model.onnx", noisy(2, 32))
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    (actual,) = session.run(None, dict(zip(names, (part.numpy() for part in noisy(3, 32)), strict=True)))
    assert worst(expected, torch.from_numpy(actual)) <= ROUNDED
