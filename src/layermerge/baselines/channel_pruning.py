"""Channel pruning: the same network with fewer channels in every layer, to compare with one that has fewer layers.

In: a trained module, example inputs, and the share of channels to remove or a latency budget. Out: a pruned copy.
Guarantees: the module given is left as it was; the copy runs on the same inputs and its outputs have the same shapes.
Channels that must go together go together; the weakest by a criterion go first, of each layer or of the whole network.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from layermerge.baselines.channel_criteria import Across, ChannelCriterion
from layermerge.baselines.channel_groups import ChannelGroup, find_groups
from layermerge.errors import BaselineError, InfeasibleBudget, LayerMergeError, first_line
from layermerge.runtimes.base import Pass, Runtime
from layermerge.runtimes.registry import make_runtime
from layermerge.solving.budget import budget_ms
from layermerge.surgery.merge import merge
from layermerge.surgery.rewrite import rewrite
from layermerge.tracing.capture import untouched
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.trace import trace

ROUND_TO = 4
"""Channels; runtimes compute in such units, so fewer would cost as much."""
_ROUNDS = 7
_MOST = 0.98
# A network this close below its budget is not worth another round.
_ROOM = 0.02


def prune_channels(
    model: nn.Module, example_inputs: Any, ratio: float, criterion: ChannelCriterion = ChannelCriterion()
) -> nn.Module:
    """A copy of the network without `ratio` of the channels of each layer, or of all together.

    Numbers of channels stay multiples of four and of what norms, grouped convs and attention heads divide them by; a layer
    too narrow for that stays whole.
    """
    if not 0 <= ratio < 1:
        raise BaselineError(f"the pruning ratio is {ratio}; give a share of the channels, at least 0 and below 1")
    name, inputs = type(model).__name__, Inputs.of(example_inputs)
    with _explained(f"{name} does not run on these example inputs", "pass what its forward() takes"):
        expected = _output_shapes(model, inputs)
    pruned = copy.deepcopy(model)
    with _explained(f"{name} cannot lose channels", "choose another baseline for it"):
        with _following_gradients(pruned):
            groups = find_groups(pruned, inputs)
            if criterion.needs_gradients:
                if criterion.gradients is None:
                    raise BaselineError(
                        f"criterion '{criterion.measure}' goes by gradients; give a task to take them of"
                    )
                criterion.gradients(pruned)
            _remove_weakest(groups, ratio, criterion)
        _renew_notes(pruned, model)
        shapes = _output_shapes(pruned, inputs)
    if shapes != expected:
        raise BaselineError(f"{name} would return {shapes} instead of {expected}; choose another baseline for it")
    return pruned


@dataclass(frozen=True)
class PrunedChannels:
    """A pruned network whose latency, measured whole with norms folded, keeps the budget."""

    module: nn.Module
    ratio: float
    measured_ms: float
    original_ms: float


def prune_to_latency(
    model: nn.Module,
    example_inputs: Any,
    budget: str,
    *,
    runtime: str | Runtime = "torch",
    original_ms: float | None = None,
    batch_size: int = 1,
    criterion: ChannelCriterion = ChannelCriterion(),
) -> PrunedChannels:
    """The network that loses the fewest channels and keeps the budget ("60%", "1.8x" or "12ms"), measured on the runtime.

    `original_ms` is the original's latency where a table has it already, so that both speak of the same budget. Costs up to
    seven rounds of pruning, tracing and a few seconds of timing.
    """
    chosen = make_runtime(runtime)
    stopwatch = chosen.clocks.whole

    def prepare(module: nn.Module) -> Pass:
        traced = trace(module, example_inputs)
        return chosen.prepare(merge(rewrite(traced, [])), traced.inputs.resized(batch_size))

    original = prepare(model)
    whole_ms = original_ms or chosen.time({"original": original}, stopwatch)["original"].value_ms

    def measure(module: nn.Module) -> float:
        # Beside the original, so that a machine that drifts slows both.
        samples = chosen.time({"original": original, "pruned": prepare(module)}, stopwatch)
        return samples["pruned"].value_ms / samples["original"].value_ms * whole_ms

    prune = partial(prune_channels, model, example_inputs, criterion=criterion)
    return search_ratio(prune, measure, budget_ms(budget, whole_ms), whole_ms)


def search_ratio(
    prune: Callable[[float], nn.Module], measure: Callable[[nn.Module], float], allowed_ms: float, original_ms: float
) -> PrunedChannels:
    """Halves the interval between a ratio that is too slow and one that keeps the budget; knows nothing of runtimes.

    The smallest ratio that was measured to keep it wins. Ratios that round to the same network are measured once.
    """
    if allowed_ms >= original_ms:
        return PrunedChannels(prune(0.0), 0.0, original_ms, original_ms)
    measured: dict[tuple[torch.Size, ...], float] = {}

    def attempt(ratio: float) -> PrunedChannels:
        module = prune(ratio)
        shapes = tuple(parameter.shape for parameter in module.parameters())
        if shapes not in measured:
            measured[shapes] = measure(module)
        return PrunedChannels(module, ratio, measured[shapes], original_ms)

    slow, best = 0.0, attempt(_MOST)
    if best.measured_ms > allowed_ms:
        raise InfeasibleBudget(best.measured_ms, allowed_ms, original_ms)
    for _ in range(_ROUNDS - 1):
        if best.measured_ms >= allowed_ms * (1 - _ROOM):
            break
        tried = attempt((slow + best.ratio) / 2)
        if tried.measured_ms <= allowed_ms:
            best = tried
        else:
            slow = tried.ratio
    return best


@contextmanager
def _explained(what: str, advice: str) -> Iterator[None]:
    """Whatever Torch-Pruning or the network raises, as one line."""
    try:
        yield
    except LayerMergeError:
        raise
    except Exception as error:
        raise BaselineError(f"{what}: {first_line(error)}; {advice}") from error


@contextmanager
def _following_gradients(model: nn.Module) -> Iterator[None]:
    """Torch-Pruning follows gradients, so each parameter must have one; flags and modes come back afterwards."""
    flags = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    with untouched(model), torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # how it treats parameters outside layers; what comes out is checked anyway
        model.requires_grad_(True).eval()
        yield
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(flags[name])
        parameter.grad = None


def _remove_weakest(groups: list[ChannelGroup], ratio: float, criterion: ChannelCriterion) -> None:
    # All are ranked before any goes: removing a channel changes the weights of the layers that read it.
    ranked = [(group, scores) for group in groups if (scores := criterion.scores(group)) is not None]
    for (group, scores), share in zip(ranked, _shares(ranked, ratio, criterion.across), strict=True):
        kept = channels_kept(len(scores) * group.parts, share, math.lcm(group.parts, ROUND_TO))
        weakest = scores.argsort(stable=True)[: len(scores) - kept // group.parts].tolist()
        if weakest:
            group.remove(sorted(part * len(scores) + place for part in range(group.parts) for place in weakest))


def _shares(ranked: list[tuple[ChannelGroup, Tensor]], ratio: float, across: Across) -> list[float]:
    """What each group loses: the same share, or what lies below one threshold for the whole network."""
    if across == "layer" or not ranked or not ratio:
        return [ratio] * len(ranked)
    together = torch.cat([scores for _, scores in ranked]).sort().values
    threshold = together[min(len(together) - 1, int(ratio * len(together)))]
    return [float((scores < threshold).double().mean()) for _, scores in ranked]


def channels_kept(channels: int, share: float, unit: int) -> int:
    """How many channels stay when a share of them goes: the nearest multiple of the unit, at least one, at most all.

    >>> channels_kept(64, 0.3, 8), channels_kept(64, 0.99, 8), channels_kept(6, 0.5, 4), channels_kept(3, 0.5, 4)
    (48, 8, 4, 3)
    """
    return min(channels, max(1, round(channels * (1 - share) / unit)) * unit) if share else channels


_NOTES = {"channels": "in_channels", "in_channels": "in_channels", "out_channels": "out_channels"}


def _renew_notes(pruned: nn.Module, model: nn.Module) -> None:
    """Corrects the channels that a module has noted of a conv which it holds; some check their inputs by them."""
    for new, old in zip(pruned.modules(), model.modules(), strict=True):
        for layer, before in zip(new.children(), old.children(), strict=True):
            if not isinstance(layer, nn.modules.conv._ConvNd):
                continue
            for note, side in _NOTES.items():
                if vars(old).get(note) == getattr(before, side):
                    setattr(new, note, getattr(layer, side))


def _output_shapes(model: nn.Module, inputs: Inputs) -> list[tuple[int, ...]]:
    with untouched(model):
        given = inputs.cloned()
        outputs = model.eval()(*given.args, **given.kwargs)
    return [tuple(leaf.shape) for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]
