"""Channel criteria: by what channels are ranked before the weakest go.

In: a group of channels as Torch-Pruning found it. Out: a score for each place. The criteria are Torch-Pruning's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from layermerge.baselines.channel_groups import ChannelGroup, torch_pruning

Measure = Literal["magnitude", "geometric", "scale", "taylor"]
Across = Literal["layer", "network"]

_MEASURES: dict[Measure, Callable[[Any], Any]] = {
    "magnitude": lambda known: known.GroupMagnitudeImportance(p=2),
    "geometric": lambda known: known.FPGMImportance(p=2),
    "scale": lambda known: known.BNScaleImportance(),
    "taylor": lambda known: known.GroupTaylorImportance(),
}


@dataclass(frozen=True)
class ChannelCriterion:
    """The norm of a channel's weights, its distance from the others, its norm's scale, or what removing it does to the loss."""

    measure: Measure = "magnitude"
    across: Across = "layer"
    """Whether each layer loses the same share, or the weakest channels of the whole network go."""
    gradients: Callable[[nn.Module], None] | None = None
    """Leaves a loss's gradients in a network's parameters."""

    @property
    def needs_gradients(self) -> bool:
        return self.measure == "taylor"

    def scores(self, group: ChannelGroup) -> Tensor | None:
        """Of the places of a group, the mean over its parts: a grouped conv has to lose the same places of each group."""
        scores: Tensor | None = _MEASURES[self.measure](torch_pruning().importance)(group.found)
        # Parts that do not divide the channels are those of a concatenation, which a norm divides elsewhere.
        unusable = scores is None or len(scores) % group.parts
        return None if unusable or scores is None else scores.reshape(group.parts, -1).mean(0)
