"""The lifted module is the user's network: same numbers in every mode, same keys, same gradients, original untouched."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import layermerge as lm
import real_networks
import zoo
from oracles import relative_difference

NAMES = [*zoo.ZOO, *real_networks.FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in real_networks.SLOW)]
AUXILIARY = real_networks.AUXILIARY | {"auxiliary_head"}


@dataclass
class Case:
    """A network, its lifted form, and what the original was like before it was traced."""

    name: str
    original: nn.Module
    lifted: nn.Module
    inputs: Callable[[int], Any]
    state_before: dict[str, Tensor]
    modes_before: dict[str, bool]
    random_before: Tensor
    random_after: Tensor
    example: Any
    example_before: Any
    warned: list[str]


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest) -> Case:
    name: str = request.param
    if name in zoo.ZOO:
        model, inputs = zoo.build(name), zoo.ZOO[name].inputs
    else:
        model, inputs = real_networks.build(name)
    model.train()
    next(model.children()).eval()  # a part the user has frozen: its mode must survive
    example = inputs(2)
    example_before = copy.deepcopy(example)
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    modes = {path: module.training for path, module in model.named_modules()}
    random_before = torch.get_rng_state()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        traced = lm.trace(model, example)
    random_after = torch.get_rng_state()
    warned = [str(warning.message) for warning in caught]
    return Case(
        name, model, traced.module, inputs, state, modes, random_before, random_after, example, example_before, warned
    )


def call(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def tensors(output: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]


def worst(expected: Any, actual: Any) -> float:
    pairs = list(zip(tensors(expected), tensors(actual), strict=True))
    assert pairs
    return max(relative_difference(a, b) for a, b in pairs)


def is_auxiliary(name: str) -> bool:
    return name.lower().startswith("aux")


def without_auxiliary_heads(model: nn.Module) -> nn.Module:
    """Heads that draw random numbers, and need larger maps than ours, replaced by nothing."""
    for name, _head in list(model.named_children()):
        if is_auxiliary(name):
            setattr(model, name, nn.Identity())
    return model


def to_double(inputs: Any) -> Any:
    return pytree.tree_map(
        lambda leaf: leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf, inputs
    )


@pytest.mark.parametrize("batch", [2, 1, 3])
def test_eval_mode_computes_the_same(case: Case, batch: int) -> None:
    expected = call(copy.deepcopy(case.original).eval(), case.inputs(batch))
    actual = call(copy.deepcopy(case.lifted).eval(), case.inputs(batch))
    assert worst(expected, actual) <= 1e-6
    assert all(output.isfinite().all() for output in tensors(actual))


def test_output_keeps_its_structure(case: Case) -> None:
    with torch.no_grad():
        expected = call(copy.deepcopy(case.original).eval(), case.inputs(2))
        actual = call(copy.deepcopy(case.lifted).eval(), case.inputs(2))
    assert type(actual) is type(expected)
    assert pytree.tree_structure(actual) == pytree.tree_structure(expected)


def test_train_mode_computes_the_same_and_moves_the_same_buffers(case: Case) -> None:
    original, lifted = copy.deepcopy(case.original).train(), copy.deepcopy(case.lifted).train()
    outputs = []
    for model in (without_auxiliary_heads(original), lifted):
        torch.manual_seed(31)
        outputs.append(tensors(call(model, case.inputs(3))))
    expected, actual = outputs
    # The head's result follows the main one, and is no part of the traced network.
    main = expected[: len(actual)] if case.name in AUXILIARY else expected
    # Sums in another memory layout are the only difference allowed.
    assert worst(main, actual) <= 1e-5
    buffers = dict(lifted.named_buffers())
    for name, buffer in original.named_buffers():
        if not is_auxiliary(name):
            assert relative_difference(buffer, buffers[name]) <= 1e-5, name


def test_batch_norm_statistics_move_in_train_mode_only(case: Case) -> None:
    statistics = [name for name, _ in case.original.named_buffers() if name.endswith("num_batches_tracked")]
    lifted = copy.deepcopy(case.lifted)
    with torch.no_grad():
        call(lifted.eval(), case.inputs(2))
        assert all(torch.equal(lifted.get_buffer(name), case.original.get_buffer(name)) for name in statistics)
        call(lifted.train(), case.inputs(2))
    steps = {name: int(lifted.get_buffer(name) - case.original.get_buffer(name)) for name in statistics}
    assert all(step == 1 for name, step in steps.items() if not is_auxiliary(name)), steps


def test_state_dict_has_the_same_keys_in_order_and_the_same_tensors(case: Case) -> None:
    expected, actual = case.original.state_dict(), case.lifted.state_dict()
    assert list(actual) == list(expected)
    assert all(torch.equal(expected[key], actual[key]) for key in expected)


def test_tensors_are_not_shared_with_the_original(case: Case) -> None:
    addresses = {tensor.data_ptr() for tensor in case.original.state_dict().values() if tensor.numel()}
    assert not any(tensor.data_ptr() in addresses for tensor in case.lifted.state_dict().values() if tensor.numel())


def test_checkpoint_of_the_original_loads_strictly(case: Case) -> None:
    changed = copy.deepcopy(case.original).eval()
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.mul_(0.9).add_(0.01)
    lifted = copy.deepcopy(case.lifted).eval()
    lifted.load_state_dict(changed.state_dict(), strict=True)
    assert worst(call(changed, case.inputs(2)), call(lifted, case.inputs(2))) <= 1e-6


def test_original_is_left_as_it_was(case: Case) -> None:
    after = case.original.state_dict()
    assert all(torch.equal(case.state_before[key], after[key]) for key in after)
    assert {path: module.training for path, module in case.original.named_modules()} == case.modes_before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in case.original.modules())
    assert all(parameter.grad is None for parameter in case.original.parameters())


def test_random_state_and_example_inputs_are_left_as_they_were(case: Case) -> None:
    assert torch.equal(case.random_before, case.random_after)
    pairs = zip(tensors(case.example_before), tensors(case.example), strict=True)
    assert all(torch.equal(before, after) for before, after in pairs)


def test_copy_computes_the_same_and_is_independent(case: Case) -> None:
    lifted = copy.deepcopy(case.lifted).eval()
    twin = copy.deepcopy(lifted)
    assert list(twin.state_dict()) == list(lifted.state_dict())
    expected = call(lifted, case.inputs(2))
    assert worst(expected, call(twin, case.inputs(2))) == 0.0
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert worst(expected, call(lifted, case.inputs(2))) == 0.0


def test_float64_runs_and_agrees(case: Case) -> None:
    expected = call(copy.deepcopy(case.original).double().eval(), to_double(case.inputs(2)))
    actual = call(copy.deepcopy(case.lifted).double().eval(), to_double(case.inputs(2)))
    assert all(output.dtype == torch.float64 for output in tensors(actual))
    # Networks that compute a time embedding in float32 regardless of their weights differ by float32's precision.
    assert worst(expected, actual) <= (1e-6 if case.name.startswith("diffusers:") else 1e-10)


def test_gradients_are_the_same(case: Case) -> None:
    gradients = []
    for source in (case.original, case.lifted):
        model = copy.deepcopy(source).double().eval()
        output = call(model, to_double(case.inputs(2)))
        sum(leaf.square().mean() for leaf in tensors(output)).backward()  # type: ignore[union-attr]
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    expected, actual = gradients
    assert expected.keys() == actual.keys()
    assert any(gradient is not None for gradient in expected.values())
    largest = max(float(gradient.abs().max()) for gradient in expected.values() if gradient is not None)
    for name, gradient in expected.items():
        other = actual[name]
        if gradient is None:
            assert other is None or not other.any(), name
        else:
            assert other is not None, name
            assert float((gradient - other).abs().max()) <= 1e-5 * largest, name


def test_warns_only_of_auxiliary_heads(case: Case) -> None:
    if case.name in AUXILIARY:
        assert any("kept frozen" in warning for warning in case.warned)
    else:
        assert case.warned == []


def test_parameters_keep_their_requires_grad(case: Case) -> None:
    frozen = [name for name, parameter in case.lifted.named_parameters() if not parameter.requires_grad]
    assert all(is_auxiliary(name) for name in frozen), frozen
    assert bool(frozen) is (case.name in AUXILIARY)
