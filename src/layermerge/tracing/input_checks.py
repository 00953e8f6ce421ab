"""Input checks: a traced network refuses an input that its graph was not captured for, instead of computing something else.

The checks are nodes of the graph, right after its inputs. So they hold wherever the graph goes (copies, pickles, rewritten
and merged forms, `torch.compile`), and leave no trace in exported files: an exporter runs them and sees no operator.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import has_side_effect

from layermerge.errors import InputError
from layermerge.tracing.operators import Shape

_HEIGHT_AND_WIDTH = (2, 3)


@has_side_effect
def require_shape(value: Any, name: str, takes: Shape) -> Any:
    """Refuses an input of another shape; None stands for a size that is free."""
    if isinstance(value, fx.Proxy):  # unpickling a graph runs its code once
        return value.tracer.create_proxy("call_function", require_shape, (value, name, takes), {})
    if not isinstance(value, Tensor):
        raise InputError(f"input '{name}' is a {type(value).__name__}, but the network was traced with a tensor")
    if value.dim() != len(takes):
        raise InputError(
            f"input '{name}' has {value.dim()} dimensions, but the network was traced with {len(takes)}; "
            f"give {'a batch of ' if takes and takes[0] is None else ''}{_written(takes)}"
        )
    wrong = [place for place, size in enumerate(takes) if size is not None and value.shape[place] != size]
    if wrong:
        free = None in takes[1:]
        fixed = all(place in _HEIGHT_AND_WIDTH for place in wrong) and len(takes) == 4
        advice = "trace it with free_size=True, or resize the input" if fixed and not free else "give it that shape"
        given = tuple(None if size is None and place == 0 else value.shape[place] for place, size in enumerate(takes))
        raise InputError(
            f"input '{name}' is {_written(given)} but the network was traced with {_written(takes)}; {advice}"
        )
    return None


@has_side_effect
def require_value(value: Any, name: str, traced: Any) -> Any:
    """Refuses another value of an input that is not a tensor: the graph computes with the one it was traced with."""
    if isinstance(value, fx.Proxy):
        return value.tracer.create_proxy("call_function", require_value, (value, name, traced), {})
    if type(value) is not type(traced) or value != traced:
        raise InputError(
            f"input '{name}' is {_shown(value)} but the network was traced with {_shown(traced)}; trace it with that value"
        )
    return None


@has_side_effect
def require_size(holds: Any, image: Any, name: str, words: str) -> Any:
    """Refuses an image of a size at which `forward()` would do something else than what was captured."""
    if isinstance(image, fx.Proxy):
        return image.tracer.create_proxy("call_function", require_size, (holds, image, name, words), {})
    if not holds:
        size = "x".join(str(size) for size in image.shape[1:])
        raise InputError(
            f"input '{name}' is {size} but the network was traced for sizes where {words}; resize the input"
        )
    return None


def takes_free_size(graph: fx.Graph) -> bool:
    """Whether the graph takes images of any height and width."""
    checks = graph.find_nodes(op="call_function", target=require_shape)
    return any(None in node.args[2][1:] for node in checks)


def _written(shape: Shape) -> str:
    """Without the batch, where that is free."""
    sizes = shape[1:] if shape and shape[0] is None else shape
    letters = dict(zip(_HEIGHT_AND_WIDTH, "HW", strict=True))
    shift = len(shape) - len(sizes)
    return "x".join(str(letters.get(place + shift, "N") if size is None else size) for place, size in enumerate(sizes))


def _shown(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)[:60]
