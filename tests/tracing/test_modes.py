"""Modes are restored submodule by submodule, after an error too."""

from __future__ import annotations

import pytest
from torch import nn

from layermerge.tracing.modes import evaluating, modes_restored


def mixed() -> nn.Sequential:
    """A network in train mode with a frozen norm: modes that no single flag describes."""
    network = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    network[1].eval()
    return network


def modes(*networks: nn.Module) -> list[bool]:
    return [part.training for network in networks for part in network.modules()]


def test_eval_mode_inside_and_every_mode_of_before_afterwards() -> None:
    network = mixed()

    def fail_in_eval_mode() -> None:
        with evaluating(network):
            assert modes(network) == [False, False, False]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_in_eval_mode()
    assert modes(network) == [True, True, False]


def test_modes_of_several_modules_are_restored() -> None:
    one, other = mixed(), mixed().eval()
    with modes_restored(one, other):
        one.eval()
        other.train()
    assert modes(one, other) == [True, True, False, False, False, False]
