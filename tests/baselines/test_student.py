"""Students: fresh weights in the same shapes, and nothing left of the trained ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import zoo
from agreement import call, same_bits
from layermerge.baselines.student import make_student
from layermerge.errors import BaselineError, LayerMergeError


@pytest.mark.parametrize(
    "name", ["plain", "inverted", "squeeze_excite", "norms_of_every_kind", "unet", "grouped_chain"]
)
def test_every_parameter_is_fresh_and_the_shapes_stay(name: str) -> None:
    model = zoo.build(name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.25)  # no value that a reset could draw or set by chance
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    student = make_student(model, seed=4)
    assert same_bits(before, model.state_dict())
    assert {key: tensor.shape for key, tensor in student.state_dict().items()} == {
        key: tensor.shape for key, tensor in before.items()
    }
    for key, parameter in student.named_parameters():
        assert not torch.equal(parameter, before[key]), key
        assert parameter.grad is None
    call(student, zoo.ZOO[name].inputs(2))


def test_layers_are_drawn_as_torch_draws_them_and_norms_forget() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))
    model(torch.randn(2, 3, 6, 6))  # the norm takes statistics
    torch.manual_seed(7)
    expected = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))
    assert same_bits(expected.state_dict(), make_student(model, seed=7).state_dict())


def test_the_seed_decides_and_the_random_state_stays() -> None:
    model = zoo.build("plain")
    state = torch.get_rng_state()
    first, again, other = (make_student(model, seed=seed).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert same_bits(first, again)
    assert not torch.equal(first["0.weight"], other["0.weight"])


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.scale = nn.Conv2d(3, 3, 1), nn.Parameter(torch.ones(3, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x) * self.scale  # type: ignore[no-any-return]


def test_a_parameter_that_no_layer_initialises_is_named() -> None:
    with pytest.raises(
        BaselineError, match=r"^parameter 'body\.scale' has no initialisation: Scaled has no reset_param"
    ):
        make_student(nn.ModuleDict({"body": Scaled()}), 0)
    with pytest.raises(LayerMergeError, match=r"^parameter 'scale' "):
        make_student(Scaled(), 0)
