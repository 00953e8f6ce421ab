"""The lifted module is the user's network: same numbers in every mode, same keys, same gradients, original untouched."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import real_networks
import zoo
from agreement import call, tensors, to_double, worst
from observed import Observed, digests, modes, observe
from oracles import relative_difference

NAMES = [*zoo.ZOO, *real_networks.FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in real_networks.SLOW)]
AUXILIARY = real_networks.AUXILIARY | {"auxiliary_head"}


@dataclass(frozen=True)
class Case:
    """A network with its lifted form, both as they are and as copies in eval mode; none of them may be changed."""

    name: str
    seen: Observed
    original: nn.Module
    lifted: nn.Module


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest) -> Case:
    name: str = request.param
    if name in zoo.ZOO:
        seen = zoo.observed(name)
    else:  # those of the sweep are large and no other test needs them
        seen = real_networks.observed(name) if name in real_networks.FAST else observe(*real_networks.build(name))
    return Case(name, seen, copy.deepcopy(seen.original).eval(), copy.deepcopy(seen.trace.module).eval())


def is_auxiliary(name: str) -> bool:
    return name.lower().startswith("aux")


def without_auxiliary_heads(model: nn.Module) -> nn.Module:
    """Heads that draw random numbers, and need larger maps than ours, replaced by nothing."""
    for name, _head in list(model.named_children()):
        if is_auxiliary(name):
            setattr(model, name, nn.Identity())
    return model


@pytest.mark.parametrize("batch", [2, 1, 3])
def test_eval_mode_computes_the_same(case: Case, batch: int) -> None:
    with torch.no_grad():
        expected = call(case.original, case.seen.inputs(batch))
        actual = call(case.lifted, case.seen.inputs(batch))
    assert worst(expected, actual) <= 1e-6
    assert all(output.isfinite().all() for output in tensors(actual))
    assert type(actual) is type(expected)
    assert pytree.tree_structure(actual) == pytree.tree_structure(expected)


def test_train_mode_computes_the_same_and_moves_the_same_buffers(case: Case) -> None:
    original, lifted = copy.deepcopy(case.original).train(), copy.deepcopy(case.lifted).train()
    before = dict(case.lifted.named_buffers())
    outputs = []
    for model in (without_auxiliary_heads(original), lifted):
        torch.manual_seed(31)
        with torch.no_grad():
            outputs.append(tensors(call(model, case.seen.inputs(3))))
    expected, actual = outputs
    # The head's result follows the main one, and is not part of the traced network.
    main = expected[: len(actual)] if case.name in AUXILIARY else expected
    # Sums in another memory layout are the only difference allowed.
    assert worst(main, actual) <= 1e-5
    buffers = dict(lifted.named_buffers())
    for name, buffer in original.named_buffers():
        if not is_auxiliary(name):
            assert relative_difference(buffer, buffers[name]) <= 1e-5, name
            if name.endswith("num_batches_tracked"):
                assert int(buffers[name] - before[name]) == 1, name


def test_nothing_moves_in_eval_mode(case: Case) -> None:
    """Whatever other tests have run through the copies in eval mode."""
    with torch.no_grad():
        call(case.lifted, case.seen.inputs(2))
    assert digests(case.lifted) == digests(case.original) == case.seen.weights_before


def test_state_dict_has_the_same_keys_in_order_and_the_same_tensors(case: Case) -> None:
    expected, actual = case.seen.original.state_dict(), case.seen.trace.module.state_dict()
    assert list(actual) == list(expected)
    assert all(torch.equal(expected[key], actual[key]) for key in expected)


def test_tensors_are_not_shared_with_the_original(case: Case) -> None:
    originals, ours = case.seen.original.state_dict().values(), case.seen.trace.module.state_dict().values()
    addresses = {tensor.data_ptr() for tensor in originals if tensor.numel()}
    assert not any(tensor.data_ptr() in addresses for tensor in ours if tensor.numel())


def test_checkpoint_of_the_original_loads_strictly(case: Case) -> None:
    changed, lifted = copy.deepcopy(case.original), copy.deepcopy(case.lifted)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.mul_(0.9).add_(0.01)
        lifted.load_state_dict(changed.state_dict(), strict=True)
        assert worst(call(changed, case.seen.inputs(2)), call(lifted, case.seen.inputs(2))) <= 1e-6


def test_original_is_left_as_it_was(case: Case) -> None:
    original = case.seen.original
    assert digests(original) == case.seen.weights_before
    assert modes(original) == case.seen.modes_before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in original.modules())
    assert all(parameter.grad is None for parameter in original.parameters())


def test_random_state_and_example_inputs_are_left_as_they_were(case: Case) -> None:
    assert torch.equal(*case.seen.random_state)
    assert all(map(torch.equal, *(tensors(example) for example in case.seen.example)))


def test_a_copy_is_independent(case: Case) -> None:
    twin = copy.deepcopy(case.lifted)
    assert list(twin.state_dict()) == list(case.lifted.state_dict())
    assert digests(twin) == digests(case.lifted)
    with torch.no_grad():
        assert worst(call(case.lifted, case.seen.inputs(2)), call(twin, case.seen.inputs(2))) <= 1e-6
        for parameter in twin.parameters():
            parameter.zero_()
    assert digests(case.lifted) == case.seen.weights_before


def test_outputs_and_gradients_in_float64_are_the_same(case: Case) -> None:
    outputs, gradients = [], []
    for source in (case.original, case.lifted):
        model = copy.deepcopy(source).double()
        outputs.append(tensors(call(model, to_double(case.seen.inputs(2)))))
        sum(leaf.square().mean() for leaf in outputs[-1]).backward()  # type: ignore[union-attr]
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert all(output.dtype == torch.float64 for output in outputs[1])
    # Networks that compute a time embedding in float32 regardless of their weights differ by float32's precision.
    assert worst(*outputs) <= (1e-6 if case.name.startswith("diffusers:") else 1e-10)
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
        assert any("kept frozen" in warning for warning in case.seen.warned)
    else:
        assert case.seen.warned == ()


def test_parameters_keep_their_requires_grad(case: Case) -> None:
    frozen = [name for name, parameter in case.lifted.named_parameters() if not parameter.requires_grad]
    assert all(is_auxiliary(name) for name in frozen), frozen
    assert bool(frozen) is (case.name in AUXILIARY)
