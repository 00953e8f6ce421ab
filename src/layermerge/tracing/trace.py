"""Trace: a trained network as layers that can be kept, removed or merged.

In: any `nn.Module` that `torch.export` captures, and example inputs. Out: a `Trace`.
Guarantees: the lifted module has the user's `state_dict` keys and computes what the user's model computes, in eval mode at
two batch sizes and in train mode, gradients included; the user's model is left as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from layermerge.arguments import checked
from layermerge.errors import TraceError
from layermerge.tracing.capture import capture
from layermerge.tracing.finder import find_structure
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.lift import LiftedModule, lift, require_convs
from layermerge.tracing.structure import Block, Layer, Structure
from layermerge.tracing.verify import verify
from layermerge.tracing.verify_sizes import verify_sizes


@dataclass(frozen=True)
class Trace:
    """A lifted network, its layers in chain order and its residual blocks."""

    module: LiftedModule
    """The network as a graph of its own modules: the user's parameter names, train and eval mode."""
    structure: Structure
    inputs: Inputs
    """What it was traced with. The batch is free; height and width are fixed by them, unless they are free too."""

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process it is traced again: graphs lose our notes on their nodes when they are pickled."""
        return _traced_again, (self.module, self.inputs, tuple(layer.name for layer in self.layers))

    @property
    def free_size(self) -> bool:
        """Whether the network takes images of any height and width."""
        return self.inputs.free_size

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The convolutions, chain after chain; candidates count them from 0."""
        return self.structure.layers

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The residual blocks; each is one contiguous range of layers."""
        return self.structure.blocks


@checked(TraceError)
def trace(model: nn.Module, example_inputs: Any, *, free_size: bool = False) -> Trace:
    """Traces a network so that its convolutions can be removed and merged.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    >>> [layer.name for layer in trace(net, torch.randn(2, 3, 16, 16)).layers]
    ['0', '2']

    `example_inputs` is a tensor, a tuple of positional inputs or a dict of keyword inputs, with a leading batch
    dimension that stays free. Height and width are fixed to theirs, and other sizes are refused, unless `free_size` keeps
    them free too: the network then takes every size that the model takes, and plans and tables refer to the traced size.
    Costs one `torch.export`, seven forward and two backward passes, and with `free_size` up to ten more forward passes.
    """
    inputs = Inputs.of(example_inputs, free_size=free_size)
    with torch.inference_mode(False):  # tensors made under it could never be trained
        lifted = lift(model, capture(model, inputs))
        require_convs(lifted, type(model).__name__)
        verify(model, lifted, inputs)
        if free_size:
            verify_sizes(model, lifted, inputs)
    return Trace(lifted, find_structure(lifted), inputs)


def _traced_again(module: LiftedModule, inputs: Inputs, names: tuple[str, ...]) -> Trace:
    traced = trace(module, inputs.as_given, free_size=inputs.free_size)
    if tuple(layer.name for layer in traced.layers) != names:
        raise TraceError(f"traced again in another process, {type(module).__name__} has other layers than before")
    return traced
