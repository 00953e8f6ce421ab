"""Networks that return more, or something else, in train mode: what eval mode returns is served and trained."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import layermerge as lm
from layermerge.errors import TraceError
from oracles import relative_difference
from zoo_registry import conv


class Pair(NamedTuple):
    main: Tensor
    extra: Tensor


class TwoFaced(nn.Module):
    def __init__(self, train: Callable[[Tensor, Tensor], Any], serve: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.a, self.norm, self.b, self.c = conv(3, 4), nn.BatchNorm2d(4), conv(4, 4), conv(4, 4)
        self.train_face, self.eval_face = train, serve

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.norm(self.a(x)))
        face = self.train_face if self.training else self.eval_face
        return face(self.b(x), self.c(x))


def detections(y: Tensor, z: Tensor) -> Any:
    return torch.cat((y, z), 1).flatten(2).sigmoid(), [y, z]


CASES = {
    "a list, and what is computed from it": (lambda y, z: [y, z], detections, 2, 3),
    "named by key": (lambda y, z: {"out": y, "aux": z}, lambda y, z: {"out": y, "both": y + z}, 1, 2),
    "a tuple and a tensor": (Pair, lambda y, _z: y, 1, 1),
    "nothing in common": (lambda y, z: [y, z], lambda y, z: y * z, 0, 1),
}


def images(batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, 9, 9, generator=torch.Generator().manual_seed(5))


@pytest.mark.filterwarnings("ignore:not part of the traced network")
@pytest.mark.parametrize("name", CASES)
def test_the_eval_structure_is_returned_in_both_modes(name: str) -> None:
    train, serve, shared, returned = CASES[name]
    torch.manual_seed(0)
    model = TwoFaced(train, serve)
    words = (
        f"in train mode too the traced network returns what the model returns in eval mode \\({shared} of {returned} "
    )
    with pytest.warns(UserWarning, match=words) as caught:
        traced = lm.trace(model, images())
    assert len(caught) == 1
    assert caught[0].filename == __file__
    lifted = copy.deepcopy(traced.module)
    torch.utils._pytree.tree_map(_equal, model.eval()(images()), lifted.eval()(images()))
    x = F.relu(model.train().norm(model.a(images())))
    torch.utils._pytree.tree_map(_equal, serve(model.b(x), model.c(x)), lifted.train()(images()))


def _equal(expected: Tensor, actual: Tensor) -> None:
    assert relative_difference(expected, actual) <= 1e-5


def test_shared_outputs_must_agree() -> None:
    model = TwoFaced(lambda y, z: {"out": 2 * y, "aux": z}, lambda y, z: {"out": y, "sum": y + z})
    with pytest.raises(TraceError, match=r"the lifted model differs from the original by .* in train mode"):
        lm.trace(model, images())


def test_gradients_of_shared_outputs_must_agree() -> None:
    model = TwoFaced(lambda y, z: {"y": y.detach(), "z": z}, lambda y, z: (y * 2, y, z))
    with pytest.raises(TraceError, match=r"the gradient of parameter 'a\.weight' differs by"):
        lm.trace(model, images())
