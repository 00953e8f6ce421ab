"""Examines one network: what its plan reaches, and whether random solutions of it are exact and survive ONNX."""

from __future__ import annotations

import copy
import random
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

import layermerge as lm
from agreement import call, differences, features, tensors, to_double, worst
from layermerge.errors import first_line
from layermerge.planning.remains import Remains
from layermerge.runtimes.base import RuntimeSettings
from layermerge.runtimes.onnx_runtime import OnnxRuntime
from layermerge.tracing.inputs import Inputs
from solutions import random_solution, randomise, tame
from sweep.branches import residual_branches
from sweep.networks import Network
from sweep.results import Finding
from sweep.shares import conv_flops, shares

EXACT = 1e-10
"""The largest difference between rewritten and merged that counts as none, in float64."""
ONNX_EXACT = 1e-4
"""The same for a file in float32, as `layermerge.export` has it; or ten times the network's own rounding, if that is more."""
SOLUTIONS = 3


class Failure(Exception):
    """Why a network does not count as one that works."""


@contextmanager
def _stage(doing: str) -> Iterator[None]:
    try:
        yield
    except lm.LayerMergeError as error:
        raise Failure(f"{doing}: {first_line(error)}") from error
    except Failure:
        raise
    except Exception as error:
        raise Failure(f"{doing}: {type(error).__name__}: {first_line(error)}") from error


def examine(network: Network) -> Finding:
    """All that the sweep wants to know of a network; a failure ends with what was found until then."""
    facts: dict[str, Any] = {"name": network.name}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _examine(network, facts)
    except Failure as failure:
        facts["failure"] = str(failure)
    return Finding(**facts)


def _examine(network: Network, facts: dict[str, Any]) -> None:
    torch.manual_seed(5)
    with _stage("build"):
        model = network.build().eval()
        inputs = network.example(model)
        randomise(model, 3, inputs)
        facts["input"] = " ".join("x".join(map(str, leaf.shape[1:])) for leaf in tensors(inputs) if leaf.dim() > 1)
    with _stage("count"):
        expected, total = residual_branches(model, inputs), conv_flops(model, inputs)
    begin = time.process_time()
    with _stage("trace"):
        traced = lm.trace(model, inputs)
    with _stage("plan"):
        menu = lm.plan(traced)
    facts["seconds"] = time.process_time() - begin
    reached = shares(menu, total, Inputs.of(inputs).batch)
    facts |= {"layers": len(menu.layers), "blocks": len(traced.blocks), "candidates": len(menu.candidates)}
    facts |= {"removal_share": reached.removal, "merging_share": reached.merging}
    facts |= {
        "branches_expected": len(expected),
        "branches_found": sum(_droppable(traced, menu, convs) for convs in expected),
    }
    _check_solutions(traced, menu, inputs, facts)


def _droppable(traced: lm.Trace, menu: lm.Plan, convs: frozenset[str]) -> bool:
    """Whether one candidate drops these convs and no others, and a branch with them: what else it computes goes, too.

    A computed conv is a layer named after the module it is in.
    """
    layers = {layer.name for layer in menu.layers if layer.name in convs or layer.name.rpartition(".")[0] in convs}
    places = [place for place, layer in enumerate(traced.layers) if layer.name in layers]
    dropped = any(not one.kept and set(one.layers) == layers for one in menu.candidates)
    return dropped and bool(Remains.without(traced.structure, places).emptied_blocks())


def _check_solutions(traced: lm.Trace, menu: lm.Plan, inputs: Any, facts: dict[str, Any]) -> None:
    facts["difference"] = 0.0
    for seed in range(SOLUTIONS):
        solution = random_solution(menu, random.Random(seed))
        with _stage(f"rewrite (random solution {seed})"):
            rewritten = lm.rewrite(traced, solution).eval()
            tame(rewritten, inputs)  # as training would: what was removed had kept values from growing
        with _stage(f"merge (random solution {seed})"):
            wide = copy.deepcopy(rewritten).double()
            found = differences(wide, lm.merge(wide), to_double(inputs))
        facts["difference"] = max(facts["difference"], *found.values())
        if facts["difference"] > EXACT:
            place = max(found, key=found.__getitem__)
            raise Failure(f"random solution {seed}: merged differs from rewritten by {found[place]:.1e} at '{place}'")
        if seed == 0:
            _check_onnx(rewritten, inputs, facts)


def _check_onnx(rewritten: Any, inputs: Any, facts: dict[str, Any]) -> None:
    """The merged network's file computes what the module does, at another batch size too."""
    with _stage("merge in float32"):
        merged = lm.merge(rewritten)
    given = Inputs.of(inputs)
    with _stage("export to ONNX"):
        served = OnnxRuntime(RuntimeSettings()).serve(merged, given)
    facts["onnx_difference"] = 0.0
    wide = copy.deepcopy(merged).double()
    for batch in (given.batch, given.batch + 1):
        feed = given.resized(batch)
        example = dict(feed.kwargs) or feed.args
        with _stage("run in onnxruntime"), torch.no_grad():
            named = feed.bound_to(merged)
            actual = served(**{name: named[name] for name in served.names})
            expected = call(merged, example)
        narrow = [leaf for leaf in tensors(expected) if leaf.is_floating_point()]
        rounding = worst(features(wide, to_double(example))["output"], narrow)
        difference = worst(expected, actual)
        facts["onnx_difference"] = max(facts["onnx_difference"], difference)
        if not difference <= max(ONNX_EXACT, 10 * rounding):
            raise Failure(f"the ONNX file differs from the merged network by {difference:.1e} at batch size {batch}")
