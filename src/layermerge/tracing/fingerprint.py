"""Fingerprint: names a network's structure: layers with their geometry and shapes, and how paths and blocks link them.

Weights do not matter, nor do the names that torch gives to operators.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from layermerge.files import document_digest
from layermerge.tracing.structure import DataPath, OpStep, Step, Structure, SubgraphStep


def fingerprint(structure: Structure) -> str:
    layers = [[layer.name, asdict(layer.spec), layer.input_shape, layer.output_shape] for layer in structure.layers]
    blocks = [[block.start, block.end, _links(block.body), _links(block.bypass)] for block in structure.blocks]
    return document_digest([layers, blocks, [_links(chain) for chain in structure.chains]])


def _links(path: DataPath) -> list[Any]:
    return [_link(step) for step in path]


def _link(step: Step) -> Any:
    if isinstance(step, SubgraphStep):
        return [_links(chain) for chain in step.chains]
    return step.role.value if isinstance(step, OpStep) else str(step)
