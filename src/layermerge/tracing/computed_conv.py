"""A conv that owns no weight: its kernel is computed from parameters in the graph (weight norm, standardisation, masks)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class ComputedConv2d(nn.Conv2d):
    """The geometry of a conv; weight and bias come with each call."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "bias": False})
        self.register_parameter("weight", None)

    def forward(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # type: ignore[override]
        result: Tensor = self._conv_forward(input, weight, bias)
        return result
