"""Figures of a network in integers, alongside the same in float32: what a call returns, and what a run writes down."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class QuantizedFigures:
    """How a network was quantised, what that lost, and the latency of both files."""

    runtime: str
    """What computes both."""
    scheme: str
    """Bits of activations and weights: U8S8; U8S7 where products of eight bits would saturate; S8S8 on ARM."""
    instructions: str
    """What the processor multiplies integers with."""
    layers: int
    left_in_float32: tuple[str, ...]
    equalised: int
    """Feature maps that were equalised; 0 where that did not help."""
    biases_corrected: bool
    loss: float
    """On held-out images, squared difference from the float32 outputs, as a share of their square."""
    plain_loss: float
    """The same without any remedy."""
    float32_ms: float
    int8_ms: float
    """Of the two files, side by side."""

    @property
    def faster(self) -> bool:
        return self.int8_ms < self.float32_ms
