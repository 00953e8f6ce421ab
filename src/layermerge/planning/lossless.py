"""Lossless: ranges that compute the same as one conv: parallel branches, and convs with nothing but norms between them.

A merge that loses no activation still moves all padding to its input. That changes nothing only where no conv pads what
another has computed: zeros around a feature map are not what the conv before would have given there.
"""

from __future__ import annotations

from layermerge.tracing.operators import Role
from layermerge.tracing.structure import BlockStep, ConvStep, DataPath, OpStep, Structure

_HARMLESS = (Role.NORM, Role.SCALE, Role.SHIFT, Role.DROPOUT)


def loses_nothing(structure: Structure, steps: DataPath) -> bool:
    """Whether two or more layers, all of them kept, merge into one conv that computes what they compute."""
    layers = sum(1 for _ in structure.layers_of(steps))
    return layers > 1 and _lossless(structure, steps, may_pad=True)


def _lossless(structure: Structure, path: DataPath, *, may_pad: bool) -> bool:
    """`may_pad`: nothing but the range's input has come yet, so that padding stays where it is."""
    for step in path:
        if isinstance(step, ConvStep):
            if any(structure.layers[step.layer].spec.padding) and not may_pad:
                return False
        elif isinstance(step, BlockStep):
            block = structure.blocks[step.block]
            if not all(_lossless(structure, branch, may_pad=may_pad) for branch in (block.body, block.bypass)):
                return False
        elif not isinstance(step, OpStep) or not (step.role in _HARMLESS or (step.role is Role.PAD and may_pad)):
            return False
        may_pad = may_pad and isinstance(step, OpStep) and step.role is Role.PAD
    return True
