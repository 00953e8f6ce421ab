"""Imitation of a map: what it costs to miss a bright place, and to invent one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from layermerge.tasks import Imitation


def maps(count: int, seed: int) -> Tensor:
    """Dark but for a place in twenty."""
    return (torch.rand(count, 1, 12, 12, generator=torch.Generator().manual_seed(seed)) < 0.05).float()


def test_in_training_inventing_costs_as_much_as_missing_and_in_what_is_reported_less() -> None:
    original = nn.Conv2d(1, 1, 1, bias=False).requires_grad_(requires_grad=False)
    original.weight.fill_(1.0)
    task = Imitation(maps(300, 0), teacher=original.eval(), held_out=100)
    said = maps(32, 1)
    missing, inventing = said.clone(), said.clone()
    for image in range(len(said)):
        missing[image].view(-1)[said[image].view(-1).argmax()] = 0.0
        inventing[image].view(-1)[said[image].view(-1).argmin()] = 1.0
    losses = [float(task.loss(one, (said,))) for one in (missing, inventing)]
    assert losses[1] == pytest.approx(losses[0], rel=0.1)
    assert float(task.distance(inventing, said, 4.0)) == pytest.approx(losses[1])
    reported = [float(task.divergence(one, said).mean()) for one in (missing, inventing)]
    assert reported[1] < 0.2 * reported[0]
