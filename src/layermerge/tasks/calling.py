"""Call: how a network is called with what a batch holds, when nothing but its forward() says so.

In: a network and one batch. Out: of a tuple as many inputs as forward() requires, of a dict those that it takes by name; the
rest, such as labels, is left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from layermerge.errors import DataError

_LABELS = {"label", "labels", "target", "targets"}
"""Left out of a dict unless forward() requires them: many networks compute a loss where they are given."""


@dataclass(frozen=True)
class Call:
    """The names of the inputs, or how many there are by position."""

    names: tuple[str, ...] = ()
    count: int = 1

    @staticmethod
    def of(network: nn.Module, given: Any) -> Call:
        """What the network takes of such a batch."""
        try:
            taken = inspect.signature(network.forward).parameters.values()
        except (TypeError, ValueError):
            taken = ()  # type: ignore[assignment]
        by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        required = [each.name for each in taken if each.default is each.empty and each.kind in by_position]
        if not isinstance(given, Mapping):
            return Call(count=max(1, len(required)))
        anything = any(each.kind is each.VAR_KEYWORD for each in taken)
        known = {each.name for each in taken}
        names = [name for name in given if (name in known or anything) and (name in required or name not in _LABELS)]
        missing = [name for name in required if name not in given]
        if missing or not names:
            wanted = ", ".join(missing or sorted(known))
            raise DataError(
                f"{type(network).__name__} takes {wanted}, but a batch is a dict of {', '.join(map(str, given))}; "
                "name the inputs as forward() does"
            )
        return Call(tuple(names), len(names))

    def inputs(self, given: Any) -> tuple[Tensor, ...]:
        """Those of a batch, in the order in which `run` takes them."""
        if self.names:
            found: tuple[Any, ...] = tuple(given.get(name) for name in self.names) if isinstance(given, Mapping) else ()
        else:
            parts = given if isinstance(given, (tuple, list)) else (given,)
            if len(parts) < self.count:
                raise DataError(
                    f"the network takes {self.count} inputs, but a batch holds {len(parts)}; give tuples of all of them"
                )
            found = tuple(parts[: self.count])
        if not found or not all(isinstance(tensor, Tensor) and tensor.ndim for tensor in found):
            raise DataError("a batch of images holds something that is not a tensor of images; give tensors")
        return found

    def run(self, network: Any, inputs: tuple[Tensor, ...]) -> Any:
        return network(**dict(zip(self.names, inputs, strict=True))) if self.names else network(*inputs)

    def example(self, inputs: tuple[Tensor, ...]) -> Any:
        """As `trace` takes them."""
        if self.names:
            return dict(zip(self.names, inputs, strict=True))
        return inputs if len(inputs) > 1 else inputs[0]
