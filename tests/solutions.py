"""Random but legal solutions, and weights as a trained network might have them."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn

from agreement import call
from layermerge.planning.candidate import Candidate
from layermerge.planning.plan import Plan

MAX_WEIGHTS = 3_000_000


def random_solution(plan: Plan, rng: random.Random, max_weights: int = MAX_WEIGHTS) -> tuple[Candidate, ...]:
    """Candidates that cover every layer once; about half of them change something.

    Ranges are drawn before what happens in them, so that long ranges, which have many candidates, do not crowd out
    short ones. Candidates whose merged conv would have more than `max_weights` weights are left out.
    """
    count = len(plan.layers)
    by_start: dict[int, list[Candidate]] = {start: [] for start in range(count)}
    for candidate in plan.candidates:
        small = candidate.spec is None or candidate.spec.weights <= max_weights
        if small or candidate.untouched:
            by_start[candidate.start].append(candidate)
    chosen: list[Candidate] = []
    position = 0
    while position < count:
        offers = by_start[position]
        untouched = [candidate for candidate in offers if candidate.untouched]
        changing = [candidate for candidate in offers if not candidate.untouched]
        if changing and (not untouched or rng.random() < 0.65):
            end = rng.choice(sorted({candidate.end for candidate in changing}))
            chosen.append(rng.choice([candidate for candidate in changing if candidate.end == end]))
        else:
            chosen.append(rng.choice(untouched))
        position = chosen[-1].end
    return tuple(chosen)


def untouched_solution(plan: Plan) -> tuple[Candidate, ...]:
    """Every layer kept alone."""
    return tuple(candidate for candidate in plan.candidates if candidate.untouched)


def randomise(model: nn.Module, seed: int, inputs: Any = None) -> nn.Module:
    """Gives norms, biases, layer scales and whatever else starts with equal values others, as training would.

    With `inputs`, kernels are scaled so that every conv's output is near size 1.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(tensor: Tensor, mean: float, std: float) -> None:
        tensor.copy_(mean + std * torch.randn(tensor.shape, generator=generator))

    def uniform(tensor: Tensor, low: float, high: float) -> None:
        tensor.copy_(low + (high - low) * torch.rand(tensor.shape, generator=generator))

    with torch.no_grad():
        for module in model.modules():
            statistics = dict(module.named_buffers(recurse=False))
            if "running_mean" in statistics:
                normal(statistics["running_mean"], 0.0, 0.3)
                uniform(statistics["running_var"], 0.5, 1.5)
            if isinstance(module, (nn.BatchNorm2d, nn.GroupNorm)):
                if module.weight is not None:
                    uniform(module.weight, 0.5, 1.5)
                if module.bias is not None:  # some have a weight only
                    normal(module.bias, 0.0, 0.2)
            if isinstance(module, nn.Conv2d) and module.bias is not None:
                normal(module.bias, 0.0, 0.2)
        for path, tensor in (*model.named_parameters(), *model.named_buffers()):
            learnt = isinstance(tensor, nn.Parameter) or path.endswith((".weight", ".bias"))
            if learnt and tensor.is_floating_point() and tensor.numel() and tensor.min() == tensor.max():
                normal(tensor, 0.0, 0.2) if path.endswith("bias") else uniform(tensor, 0.5, 1.5)
        if inputs is not None:
            tame(model, inputs)
    return model


@torch.no_grad()
def tame(model: nn.Module, inputs: Any) -> None:
    """Divides each conv's weights by the size of its output, first conv first, in one pass over the network."""

    def rescale(module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        size = output.std().clamp_min(1e-3)
        for parameter in module.parameters():
            parameter.div_(size)
        return output / size

    handles = [module.register_forward_hook(rescale) for module in model.modules() if isinstance(module, nn.Conv2d)]
    training = [(module, module.training) for module in model.modules()]
    model.eval()
    output = call(model, inputs)
    for handle in handles:
        handle.remove()
    for module, mode in training:
        module.training = mode
    del output
