"""A series-parallel network, traced and planned, beside what the oracle makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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

    def __init__(self, network: Network, rules: lm.Rules | None = None) -> None:
        self.network = network
        self.model = SeriesParallel(network).double().eval()
        self.inputs = inputs_of(network)
        self.tensors = self.model.state_dict()
        self.outputs = self.of(self.model)
        self.trace: Trace = lm.trace(self.model, self.inputs)
        self.menu = lm.plan(self.trace, rules)

    def of(self, module: nn.Module) -> list[Tensor]:
        with torch.no_grad():
            return list(module(*self.inputs))

    def by_hand(
        self, chosen: Sequence[lm.Candidate], *, add_activation: bool = True, means: Mapping[str, Tensor] | None = None
    ) -> list[Tensor]:
        """`means` are what replaces gates."""
        ranges = [Range(frozenset(one.layers), frozenset(one.kept), one.replaced) for one in chosen]
        program = expected(self.network, ranges, add_activation=add_activation)
        return program.run({**self.tensors, **(means or {})}, *self.inputs)

    def assert_exact(self, chosen: Sequence[lm.Candidate], *, add_activation: bool = True) -> RewrittenModule:
        """Rewritten computes what the oracle says, merged what rewritten does, and nothing changes where nothing should."""
        rewritten = lm.rewrite(self.trace, chosen, add_activation=add_activation).eval()
        outputs = self.of(rewritten)
        means = {name: tensor for name, tensor in rewritten.state_dict().items() if name.endswith("_mean")}
        assert worst(self.by_hand(chosen, add_activation=add_activation, means=means), outputs) <= EXACT
        assert worst(outputs, self.of(lm.merge(rewritten))) <= EXACT
        if not any(candidate.changes for candidate in chosen):
            assert worst(self.outputs, outputs) <= EXACT
        return rewritten
