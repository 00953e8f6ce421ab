"""Channel pruning of denoising networks: what is left is a stock network of less width, and LayerMerge can follow."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import layermerge as lm
import real_networks
from agreement import worst
from diffusion.stock import ROUNDED, SMALL, TINY, blocks, noisy, pictures, small, told, unet
from layermerge.baselines import channel_pruning
from layermerge.baselines.channel_pruning import prune_channels, prune_to_latency
from layermerge.runtimes.clock import Clocks, ClockSettings, Sample
from solutions import random_solution, randomise


def weights(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@cache
def halved() -> Any:
    return prune_channels(small()[0], noisy(2), 0.5).eval()


def test_half_the_channels_is_a_stock_network_of_half_the_width() -> None:
    """The library's own network with half the channels takes the weights, and computes the same with them.

    Groups of norms and attention heads keep their numbers; only the sinusoids of the time step keep their width.
    """
    pruned, model = halved(), small()[0]
    narrow = unet(SMALL | {"block_out_channels": (8, 16), "attention_head_dim": 4})
    narrow.time_proj = model.time_proj
    narrow.time_embedding.linear_1 = nn.Linear(16, 32)
    narrow.load_state_dict(pruned.state_dict())
    with torch.no_grad():
        expected = narrow(*noisy(3)).sample
        assert worst(expected, pruned(*noisy(3)).sample) <= 1e-6
        assert worst(expected, model(*noisy(3)).sample) > 1e-2
    assert weights(pruned) < 0.3 * weights(model)


def test_every_weight_left_is_one_that_was_there() -> None:
    """Channels go, and nothing else changes: norms, which have one number a channel, say which of them went."""
    before = dict(small()[0].named_parameters())
    for name, parameter in halved().named_parameters():
        assert torch.isin(parameter, before[name]).all(), name


def test_channels_that_a_concatenation_joins_go_where_they_are_read() -> None:
    """What a skip brings has lost the channels that the layer before it lost: norms behind both kept the same places."""
    before, after = small()[0], halved()

    def kept(name: str) -> list[int]:
        weight, left = before.get_submodule(name).weight, after.get_submodule(name).weight
        return torch.isin(weight, left).nonzero().flatten().tolist()

    skip = kept("down_blocks.0.resnets.0.norm1")  # what conv_in writes; the last block reads it behind 16 others
    last = kept("up_blocks.1.resnets.1.norm1")
    assert [place - 16 for place in last if place >= 16] == skip
    assert [place for place in last if place < 16] == kept("conv_norm_out") != []


def test_layermerge_can_follow() -> None:
    """The pruned network is traced, planned like the original, and merges exactly."""
    pruned = halved()
    trace = lm.trace(pruned, noisy(2))
    menu = lm.plan(trace)
    assert {c.layers for c in menu.candidates if len(c.layers) == 2} == {
        (f"{name}.conv1", f"{name}.conv2") for name in blocks(pruned)
    }
    for seed in range(4):
        solution = random_solution(menu, random.Random(seed))
        merged = lm.merge(lm.rewrite(trace, solution))
        with torch.no_grad():
            expected = told(pruned, solution)(*noisy(3)).sample
            assert worst(expected, merged(*noisy(3)).sample) <= ROUNDED
            assert worst(pruned(*noisy(3)).sample, expected) > 1e-2


def test_a_pruned_network_samples_in_a_stock_pipeline() -> None:
    images = pictures(small()[0], halved(), steps=3)
    assert images.shape == (2, 16, 16, 3)
    assert images.std() > 0.01


def _weighing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up machine whose time is made of weights, so that a busy one cannot fail the test."""

    class Weighing:
        def prepare(self, module: nn.Module, _inputs: Any, **_options: Any) -> int:
            return weights(module)

        clocks = Clocks()

        def time(self, runs: dict[str, int], _clock: ClockSettings) -> dict[str, Sample]:
            return {name: Sample(float(run), 0.0, 1) for name, run in runs.items()}

    monkeypatch.setattr(channel_pruning, "make_runtime", lambda *_: Weighing())


def test_pruning_to_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    _weighing(monkeypatch)
    monkeypatch.setattr(channel_pruning, "_ROUNDS", 2)  # each traces the network; the search has tests of its own
    model = unet(TINY)
    found = prune_to_latency(model, noisy(2, 8), "60%")
    assert found.original_ms == weights(model)
    assert found.measured_ms == weights(found.module) <= 0.6 * weights(model)
    # Norms of eight groups leave two widths, sixteen and eight.
    assert {part.num_channels for part in found.module.modules() if isinstance(part, nn.GroupNorm)} == {8, 16}
    assert found.module(*noisy(3, 8)).sample.shape == (3, 3, 8, 8)


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.25, 0.75])
def test_other_shares_can_be_followed_too(ratio: float) -> None:
    pruned: Any = prune_channels(small()[0], noisy(2), ratio).eval()
    trace = lm.trace(pruned, noisy(2))
    for seed in range(3):
        solution = random_solution(lm.plan(trace), random.Random(seed))
        merged = lm.merge(lm.rewrite(trace, solution))
        with torch.no_grad():
            assert worst(told(pruned, solution)(*noisy(3)).sample, merged(*noisy(3)).sample) <= ROUNDED


@pytest.mark.slow
def test_the_network_of_the_paper_on_a_real_runtime(tmp_path: Path) -> None:
    """Pruned to 70 % of its time, then merged exactly and exported."""
    model = randomise(real_networks.ddpm().eval(), 3, noisy(2, 32))
    found = prune_to_latency(model, noisy(2, 32), "70%", runtime="torch")
    assert 0 < found.measured_ms <= 0.7 * found.original_ms
    trace = lm.trace(found.module, noisy(2, 32))
    solution = random_solution(lm.plan(trace), random.Random(1))
    merged = lm.merge(lm.rewrite(trace, solution))
    with torch.no_grad():
        expected = told(found.module, solution)(*noisy(3, 32)).sample
        assert worst(expected, merged(*noisy(3, 32)).sample) <= ROUNDED
    lm.export(merged, tmp_path / "model.onnx", noisy(2, 32))
