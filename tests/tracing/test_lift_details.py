"""What lifting does with particular modules: auxiliary heads, dropout, frozen and tied parameters, functions of a module."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import layermerge as lm
import zoo
from observed import modes
from oracles import relative_difference


def test_auxiliary_head_is_kept_frozen_with_a_warning() -> None:
    model, x = zoo.build("auxiliary_head"), zoo.ZOO["auxiliary_head"].inputs(2)
    with pytest.warns(UserWarning, match=r"kept frozen under their names: aux; in train mode too the") as caught:
        lifted = lm.trace(model, x).module
    assert caught[0].filename == __file__
    frozen = {name for name, parameter in lifted.named_parameters() if not parameter.requires_grad}
    assert frozen == {name for name, _ in model.named_parameters() if name.startswith("aux.")}
    lifted.train()
    model.train()
    torch.manual_seed(1)
    main, _extra = model(x)
    torch.manual_seed(1)
    assert relative_difference(main, lifted(x)) <= 1e-6


@pytest.mark.parametrize("name", ["plain", "basic", "in_place"])
def test_a_part_in_another_mode_stays_in_it(name: str) -> None:
    """A norm that the user keeps in eval mode while the rest is trained, say."""
    model = zoo.build(name).train()
    next(model.children()).eval()
    before = modes(model)
    lm.trace(model, zoo.ZOO[name].inputs(2))
    assert modes(model) == before


def test_frozen_parameters_stay_frozen() -> None:
    model = zoo.build("plain")
    next(model.parameters()).requires_grad_(False)
    lifted = lm.trace(model, zoo.ZOO["plain"].inputs(2)).module
    flags = {name: parameter.requires_grad for name, parameter in lifted.named_parameters()}
    assert flags == {name: parameter.requires_grad for name, parameter in model.named_parameters()}


def test_a_module_under_two_names_stays_trainable_and_tied() -> None:
    torch.manual_seed(0)
    model, x = zoo.TwoNames(), torch.randn(2, 3, 8, 8)
    traced = lm.trace(model, x)
    lifted = traced.module
    assert list(lifted.state_dict()) == list(model.state_dict())
    assert all(parameter.requires_grad for parameter in lifted.parameters())
    assert len(list(lifted.parameters())) == len(list(model.parameters()))
    assert len(traced.layers) == 2


def test_dropout_is_random_in_train_mode_and_silent_in_eval_mode() -> None:
    lifted = copy.deepcopy(zoo.traced("functional_dropout").module)
    x = zoo.ZOO["functional_dropout"].inputs(2)
    assert relative_difference(lifted.eval()(x), lifted(x)) <= 1e-6
    assert relative_difference(lifted.train()(x), lifted(x)) > 1e-2


def test_stochastic_depth_stays_the_users_own_module() -> None:
    lifted = zoo.traced("stochastic_depth").module
    assert type(lifted.get_submodule("drop_path")) is zoo.DropPath


def test_functions_become_modules_beside_their_caller() -> None:
    kinds = {name: type(module) for name, module in zoo.traced("functional_relu").module.named_modules()}
    assert [name for name, kind in kinds.items() if kind is nn.ReLU] == ["relu", "relu_1"]
    assert [name for name, kind in kinds.items() if kind is nn.Conv2d] == ["first", "second", "third"]


def test_norms_keep_their_settings() -> None:
    original = zoo.build("norms_of_every_kind")
    lifted = zoo.traced("norms_of_every_kind").module
    for name in ("slow", "instance", "group", "batch_statistics", "slope"):
        assert repr(lifted.get_submodule(name)) == repr(original.get_submodule(name))


def test_in_place_operators_leave_the_callers_tensor_alone() -> None:
    """The network's own in-place ReLU runs on a map it made; the captured graph has no in-place operator left."""
    targets = [node.target for node in zoo.traced("in_place").module.graph.nodes]
    operators = [target for target in targets if isinstance(target, torch._ops.OpOverload)]
    assert not [operator for operator in operators if operator._schema.is_mutable]


class SplitInPlace(nn.Module):
    """Activates a part of a map in place; the whole map is read afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x.chunk(2, 1)[0].relu_()
        return self.second(x)  # type: ignore[no-any-return]


def test_an_in_place_operator_on_a_part_of_a_map() -> None:
    torch.manual_seed(0)
    model, x = SplitInPlace(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():  # autograd forbids it
        assert relative_difference(model(x), lm.trace(model, x).module(x)) <= 1e-6


class NamedDropPath(zoo.DropPath):
    """Stochastic depth that takes a setting with every call."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return super().forward(x * scale) if self.training else x


def test_stochastic_depth_may_take_keywords() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.drop_path, self.second = nn.Conv2d(3, 4, 3), NamedDropPath(), nn.Conv2d(4, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.drop_path(self.first(x), scale=0.5))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model, x = Net(), torch.randn(2, 3, 8, 8)
    lifted = lm.trace(model, x).module
    outputs = []
    for module in (model.train(), lifted.train()):
        torch.manual_seed(4)
        outputs.append(module(x))
    assert relative_difference(*outputs) <= 1e-6


def test_an_in_place_dropout_on_a_flattened_map_is_dropout_still() -> None:
    """Flattening is a view; nothing reads the map under it again, so the dropout can be lifted like any other."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Dropout(0.5, inplace=True), nn.Linear(4 * 36, 5))
    traced = lm.trace(model, torch.randn(2, 3, 8, 8))
    assert isinstance(traced.module.get_submodule("2"), nn.Dropout)
    x = torch.randn(3, 3, 8, 8)
    outputs = []
    for module in (model.train(), traced.module.train()):
        torch.manual_seed(1)
        outputs.append(module(x))
    assert relative_difference(*outputs) <= 1e-6
    assert relative_difference(outputs[0], model.eval()(x)) > 1e-2


class _Keeps(nn.Module):
    """Keeps what it computed for a shape, as heads of detectors keep their anchors."""

    shape: torch.Size | None = None
    grid = torch.zeros(())

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if self.shape != y.shape:
            self.shape, self.grid = y.shape, torch.arange(y.shape[-1], dtype=y.dtype, device=y.device)
        result: Tensor = (y + self.grid).reshape(y.shape[0], -1)
        return result


def test_the_batch_stays_free_where_a_model_keeps_what_it_computed_for_a_shape() -> None:
    model, x = nn.Sequential(nn.Identity(), _Keeps()).eval(), torch.randn(2, 3, 8, 8)
    for _ in range(2):  # fresh, and with a shape that it has seen
        lifted = lm.trace(model, x).module
        for batch in (1, 2, 3, 5):
            given = torch.randn(batch, 3, 8, 8)
            assert relative_difference(model(given), lifted(given)) <= 1e-6
        model(x)


class _Viewing(nn.Module):
    """Looks at maps in ways that ask for the usual strides; optionally writes through one of them."""

    def __init__(self, *, writing: bool) -> None:
        super().__init__()
        self.writing = writing
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8 * 36, 5)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.second(torch.relu(self.first(x)))
        if self.writing:
            maps.view(-1, 8 * 36)[:, ::2].mul_(0.5)
        scores: Tensor = self.head(maps.view(x.size(0), -1))
        return scores


@pytest.mark.parametrize("writing", [False, True])
def test_images_may_come_in_channels_last_whatever_views_the_network_takes(writing: bool) -> None:
    """The model itself raises there; what it computes for the usual layout is known."""
    torch.manual_seed(0)
    model, x = _Viewing(writing=writing).eval(), torch.randn(3, 3, 6, 6)
    other = x.contiguous(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        model(other)
    for net in (lm.trace(model, x).module, lm.rewrite(lm.trace(model, x), [])):
        assert relative_difference(model(x), net(other)) <= 1e-6
