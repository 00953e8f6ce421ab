"""A series-parallel network, traced and planned, beside what the oracle makes of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

import layermerge as lm
from agreement import worst
from layermerge.surgery.rewrite import RewrittenModule
from layermerge.tracing.trace import Trace
from network_modules import SeriesParallel, inputs_of
from network_parts import Network
from rewrite_oracle import Range, expected

EXACT = 1e-10


class TracedNetwork:
    """In float64 and eval mode; `outputs` is what the model computes."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.model = SeriesParallel(network).double().eval()
        self.inputs = inputs_of(network)
        self.tensors = self.model.state_dict()
        self.outputs = self.of(self.model)
        self.trace: Trace = lm.trace(self.model, self.inputs)
        self.menu = lm.plan(self.trace)

    def of(self, module: nn.Module) -> list[Tensor]:
        with torch.no_grad():
            return list(module(*self.inputs))

    def by_hand(self, chosen: Sequence[lm.Candidate], *, add_activation: bool = True) -> list[Tensor]:
        ranges = [Range(frozenset(one.layers), frozenset(one.kept)) for one in chosen]
        return expected(self.network, ranges, add_activation=add_activation).run(self.tensors, *self.inputs)

    def assert_exact(self, chosen: Sequence[lm.Candidate], *, add_activation: bool = True) -> RewrittenModule:
        """Rewritten computes what the oracle says, merged what rewritten does, and nothing changes where nothing should."""
        rewritten = lm.rewrite(self.trace, chosen, add_activation=add_activation).eval()
        outputs = self.of(rewritten)
        assert worst(self.by_hand(chosen, add_activation=add_activation), outputs) <= EXACT
        assert worst(outputs, self.of(lm.merge(rewritten))) <= EXACT
        if not any(candidate.changes for candidate in chosen):
            assert worst(self.outputs, outputs) <= EXACT
        return rewritten
