"""Mean gates: what replaces a gate, taken from the original's own gate over images.

In: a rewritten network, its original, images. Out: the network's parameters in place of gates are the mean of what the
original's gates give. `rewrite` does not know the images, and has taken them from the example inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from layermerge.calibration.sample import Sample, Sources
from layermerge.calibration.walk import Walk
from layermerge.surgery.mean_gates import set_means
from layermerge.surgery.rewrite import RewrittenModule
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.lift import LiftedModule
from layermerge.tracing.modes import evaluating
from layermerge.tracing.structure import Gate

_IMAGES, _AT_ONCE = 256, 64


def take_means(net: RewrittenModule, original: LiftedModule, batches: Sequence[Inputs]) -> None:
    """Sets what replaces gates to the mean of the original's gates over all images, in float64."""
    gates = net.surgery.gates
    nodes = {node.name: node for node in original.graph.nodes}
    wanted = sorted((nodes[gate.value] for gate in gates), key=list(original.graph.nodes).index)
    sums: dict[str, Tensor] = {}
    count = 0
    with evaluating(original), torch.no_grad():
        for values in Walk(original, batches, 0).each(wanted):
            count += len(values[0])
            for node, value in zip(wanted, values, strict=True):
                sums[node.name] = sums.get(node.name, 0.0) + value.sum(0, dtype=torch.float64)
    means: dict[Gate, Tensor] = {gate: sums[gate.value] / count for gate in gates}
    set_means(net, net.surgery.structure, means)


def with_mean_gates(net: RewrittenModule, images: Sources) -> RewrittenModule:
    """A network that was rewritten in this process, its gates replaced by their mean over some hundred images."""
    if net.surgery.gates:
        assert net.surgery.origin.module is not None, "it was rewritten in this process"
        sample = Sample.of(images, net.surgery.inputs, _IMAGES, _AT_ONCE)
        take_means(net, net.surgery.origin.module, (*sample.fitted, *sample.held_out))
    return net
