"""The inner loop against loops written out by hand with torch's own optimizers, and what it leaves as it was."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agreement import same_bits
from layermerge.errors import TuningError
from layermerge.tasks.base import Batch, Draw
from layermerge.tuning.loop import train_steps
from layermerge.tuning.recipe import Recipe
from layermerge.tuning.trainer import Trainer
from tuning.toy_task import ToyTask, network, recipe, same, weights


def groups(net: nn.Module, decay: float) -> list[dict[str, Any]]:
    return [
        {"params": [p for p in net.parameters() if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in net.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]


def batches(epochs: int) -> Iterator[Batch]:
    for epoch in range(epochs):
        yield from ToyTask().train_batches(Draw(seed=0, batch_size=16, epoch=epoch))


def by_hand(net: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Any, *, clip: float | None = None) -> nn.Module:
    """Two epochs of four steps, cosine from 0.1 to zero."""
    net.train()
    for step, batch in enumerate(batches(2)):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * (1 + math.cos(math.pi * step / 8)) / 2
        optimizer.zero_grad()
        loss_of(net(batch[0]), batch).backward()
        if clip is not None:
            gradients = [p.grad for p in net.parameters() if p.grad is not None]
            norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients))
            for gradient in gradients:
                gradient.mul_(min(1.0, clip / norm))
        optimizer.step()
    return net


def cross_entropy(outputs: Tensor, batch: Batch) -> Tensor:
    return F.cross_entropy(outputs, batch[1])


def without_dropout(net: nn.Sequential) -> nn.Sequential:
    net[4] = nn.Identity()
    return net


def plain() -> nn.Sequential:
    return without_dropout(network())


def close(one: nn.Module, other: nn.Module) -> None:
    torch.testing.assert_close(weights(one), weights(other), rtol=1e-5, atol=1e-6)


# -- against loops by hand


@pytest.mark.parametrize("name", ["sgd", "plain_sgd", "adam", "adamw"])
def test_training_is_what_torch_does(name: str) -> None:
    net = plain()
    parameters = groups(net, 0.01)
    optimizer: torch.optim.Optimizer
    if name == "sgd":
        given, optimizer = recipe(momentum=0.8), torch.optim.SGD(parameters, lr=1, momentum=0.8, nesterov=True)
    elif name == "plain_sgd":
        given, optimizer = recipe(momentum=0, nesterov=False), torch.optim.SGD(parameters, lr=1)
    elif name == "adam":
        given, optimizer = recipe(optimizer="adam"), torch.optim.Adam(parameters, lr=1)
    else:
        given, optimizer = recipe(optimizer="adamw"), torch.optim.AdamW(parameters, lr=1)
    expected = by_hand(net, optimizer, cross_entropy)
    actual = train_steps(plain(), ToyTask(), given)
    assert same_bits(weights(expected), weights(actual))
    assert not same(actual, plain())


def test_label_smoothing_reaches_the_loss() -> None:
    task = ToyTask()
    actual = train_steps(plain(), task, recipe(label_smoothing=0.2))
    assert task.smoothing == {0.2}

    def smoothed(outputs: Tensor, batch: Batch) -> Tensor:
        target = 0.8 * F.one_hot(batch[1], 5) + 0.2 / 5
        return F.cross_entropy(outputs, target)

    net = plain()
    close(by_hand(net, torch.optim.SGD(groups(net, 0.01), lr=1, momentum=0.9, nesterov=True), smoothed), actual)


def test_gradients_are_clipped_to_their_joint_norm() -> None:
    net = plain()
    optimizer = torch.optim.SGD(groups(net, 0.01), lr=1, momentum=0.9, nesterov=True)
    actual = train_steps(plain(), ToyTask(), recipe(clip_norm=0.3))
    close(by_hand(net, optimizer, cross_entropy, clip=0.3), actual)
    assert not same(actual, train_steps(plain(), ToyTask(), recipe()))


def test_distillation_mixes_labels_and_teacher() -> None:
    teacher = plain().train()
    before, modes = weights(teacher), [module.training for module in teacher.modules()]
    given = recipe(distill={"temperature": 2.0, "weight": 0.3})
    actual = train_steps(network(norm=False, seed=5), ToyTask(), given, teacher)
    assert same_bits(before, weights(teacher))
    assert modes == [module.training for module in teacher.modules()]
    assert all(parameter.grad is None for parameter in teacher.parameters())

    frozen = plain().eval()

    def distilled(outputs: Tensor, batch: Batch) -> Tensor:
        with torch.no_grad():
            answers = frozen(batch[0])
        distance: Tensor = ((outputs - answers) / 2).square().mean()
        return 0.7 * F.cross_entropy(outputs, batch[1]) + 0.3 * distance

    net = network(norm=False, seed=5)
    close(by_hand(net, torch.optim.SGD(groups(net, 0.01), lr=1, momentum=0.9, nesterov=True), distilled), actual)


def test_a_teacher_that_the_recipe_does_not_use_changes_nothing() -> None:
    assert same(train_steps(plain(), ToyTask(), recipe(), network()), train_steps(plain(), ToyTask(), recipe()))


def test_the_average_is_the_average() -> None:
    trainer = Trainer(network(), ToyTask(), recipe(ema=0.75))
    states = [weights(trainer.net)]
    with trainer.session():
        for _ in trainer.run():
            states.append(weights(trainer.net))
        own = weights(trainer.net)
        trainer.evaluate()
        assert same_bits(own, weights(trainer.net))  # evaluating lends the average and takes it back
    trainer.finish()
    for name, actual in trainer.net.state_dict().items():
        expected = states[0][name].double()
        for state in states[1:]:
            expected = 0.75 * expected + 0.25 * state[name].double()
        if not actual.is_floating_point():
            expected = states[-1][name].double()
        torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-6)


def test_the_average_leaves_counters_and_constants_alone() -> None:
    net = network()
    net.register_buffer("mask", torch.tensor([0.0, -math.inf]), persistent=False)
    trained = train_steps(net, ToyTask(), recipe(ema=0.999))
    assert trained.get_buffer("mask").tolist() == [0.0, -math.inf]
    assert trained.get_buffer("1.num_batches_tracked") == 8


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision_trains_float32_weights(precision: str) -> None:
    exact, mixed = (train_steps(plain(), ToyTask(), recipe(precision=p, lr=0.01)) for p in ("float32", precision))
    assert all(parameter.dtype == torch.float32 for parameter in mixed.parameters())
    assert not same(exact, mixed)
    start = weights(plain())
    for name, value in weights(exact).items():
        if value.is_floating_point():  # near the float32 run, as far as eight bits of mantissa go
            assert (weights(mixed)[name] - value).norm() <= 0.2 * (value - start[name]).norm() + 1e-4, name


# -- what stays as it was


def test_the_same_recipe_gives_the_same_bits_whatever_torch_drew_before() -> None:
    one = train_steps(network(), ToyTask(), recipe())
    torch.manual_seed(1234)
    before = torch.get_rng_state()
    other = train_steps(network(), ToyTask(), recipe())
    assert same(one, other)
    assert torch.equal(before, torch.get_rng_state())
    assert not same(one, train_steps(network(), ToyTask(), recipe(seed=1)))


def test_frozen_parameters_modes_and_gradients_are_left_alone() -> None:
    net = network()
    net[0].requires_grad_(False)
    net[2].train()
    before, modes = weights(net), [module.training for module in net.modules()]
    with torch.no_grad():  # a caller's habit that must not end training
        assert train_steps(net, ToyTask(), recipe(weight_decay=0.5)) is net
    after = weights(net)
    assert same_bits([before["0.weight"], before["0.bias"]], [after["0.weight"], after["0.bias"]])
    assert not torch.equal(before["3.weight"], after["3.weight"])
    assert modes == [module.training for module in net.modules()]
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_subset_is_all_that_is_seen() -> None:
    task = ToyTask()
    task.images[32:] = math.nan
    train_steps(plain(), task, recipe(subset=32, epochs=3))
    assert task.given == 6


def test_few_steps_print_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    task = ToyTask()
    train_steps(network(), task, recipe(steps=3))
    assert (task.given, task.evaluations) == (3, 0)
    assert capfd.readouterr() == ("", "")


# -- refusals


def refusal(given: Recipe, task: ToyTask | None = None, **more: Any) -> str:
    with pytest.raises(TuningError) as caught:
        train_steps(network(), task or ToyTask(), given, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_distillation_needs_a_teacher() -> None:
    assert "there is no teacher; pass teacher=" in refusal(recipe(distill={}))
    net = network()
    with pytest.raises(TuningError, match="cannot be its own teacher"):
        train_steps(net, ToyTask(), recipe(distill={}), net)


def test_a_loss_that_is_not_finite_ends_training() -> None:
    task = ToyTask()
    task.images[:] = math.inf
    assert refusal(recipe(steps=2), task).startswith("the loss is nan at step 0 with lr 0.1; lower lr")


def test_a_task_must_keep_its_word_on_the_number_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(ToyTask):
        def train_batches(self, draw: Draw) -> Iterator[Batch]:
            return islice(super().train_batches(draw), 1)

    assert "epoch 0 ended 3 batches before steps_per_epoch (4) says" in refusal(recipe(), Short())
    monkeypatch.setattr(ToyTask, "steps_per_epoch", lambda *_: 0)
    assert "no training batch" in refusal(recipe())
