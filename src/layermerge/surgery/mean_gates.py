"""Mean gates: a parameter of one value per channel in the place of a gate, which folds into a conv next to it.

In: the readings of all candidates. Out: the readings with each product that only multiplies by a parameter now as a step of the
range whose conv it folds into: the one right before it, or else the one right after it, where zero padding
is not affected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from layermerge.planning.reading import Reading, read, untouched
from layermerge.surgery.running import run
from layermerge.tracing.inputs import Inputs
from layermerge.tracing.lift import LiftedModule
from layermerge.tracing.modes import evaluating
from layermerge.tracing.operators import Role
from layermerge.tracing.structure import ConvStep, Gate, OpStep, Structure


def mean_name(structure: Structure, gate: Gate) -> str:
    """The parameter, named after the last of the layers that it replaces."""
    return f"{structure.layers[gate.end - 1].name}_mean"


def replaced_gates(readings: Iterable[Reading]) -> list[Gate]:
    return [reading.gate for reading in readings if reading.gate]


def fold_gates(structure: Structure, readings: Sequence[Reading]) -> list[Reading]:
    """The readings, some with a product of a mean as their first or last step; a product between activations stays alone."""
    found = list(readings)
    for gate in replaced_gates(readings):
        step = OpStep(gate.product, Role.NORM, gate.product, gate.shape)
        before = next((place for place, one in enumerate(found) if _ends_at(structure, one, gate)), None)
        behind = next((place for place, one in enumerate(found) if _begins_behind(structure, one, gate)), None)
        if before is not None:
            one = found[before]
            found[before] = replace(one, steps=(*one.steps, step), end=gate.product, folds=True)
        elif behind is not None:
            one = found[behind]
            found[behind] = replace(one, steps=(step, *one.steps), folds=True)
    return found


def lonely_gates(structure: Structure) -> frozenset[Gate]:
    """The gates whose mean folds into no conv, all layers left as they are: a product stays."""
    layers = [read(structure, untouched(structure, index)) for index in range(len(structure.layers))]
    return frozenset(
        gate
        for gate in structure.gates
        if not any(_ends_at(structure, one, gate) or _begins_behind(structure, one, gate) for one in layers)
    )


def _ends_at(structure: Structure, reading: Reading, gate: Gate) -> bool:
    """Whether a range gives the gate's map, which nothing else reads, and no norm has moved in between."""
    alone = {gate.product, *gate.nodes}.issuperset(structure.operations[gate.source].readers)
    if not reading.candidate.kept or reading.moved or not alone:
        return False
    *_, last = structure.nodes_of(reading.steps)
    return last == gate.source


def _begins_behind(structure: Structure, reading: Reading, gate: Gate) -> bool:
    """Whether a range alone reads the gate's product."""
    if not reading.candidate.kept or not isinstance(first := reading.steps[0], ConvStep):
        return False
    layer = structure.layers[first.layer]
    return structure.operations[gate.product].readers == ((*layer.pads, layer.node)[0],)


def gate_values(original: LiftedModule, gates: Sequence[Gate], inputs: Inputs) -> list[Tensor]:
    """What the gates' values are for an example of the network's inputs."""
    numbers = {gate.value: number for number, gate in enumerate(gates)}
    ends = {node: numbers[node.name] for node in original.graph.nodes if node.name in numbers}
    with evaluating(original), torch.no_grad(), torch.random.fork_rng(devices=[]):
        values = run(original, inputs, ends, wide=False)
    return [values[number] for number in range(len(gates))]


@torch.no_grad()
def set_means(module: LiftedModule, structure: Structure, values: Mapping[Gate, Tensor]) -> None:
    """Writes the gates' mean values, where the network still has a parameter for them."""
    known = dict(module.named_parameters())
    for gate, mean in values.items():
        if (parameter := known.get(mean_name(structure, gate))) is not None:
            parameter.copy_(mean.reshape(parameter.shape))
