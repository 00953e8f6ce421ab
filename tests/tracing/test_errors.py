"""What cannot be traced ends in one line: what, where in the user's model, what to try."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import layermerge as lm
from layermerge.errors import TraceError

PLACE = r"test_errors\.py:\d+"


class Net(nn.Module):
    """Two convs with a step of the test's own between them."""

    def __init__(self, between: Callable[[nn.Module, Tensor], Any] = lambda _self, x: x) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.between = between

    def forward(self, x: Tensor) -> Any:
        return self.second(self.between(self, self.first(x)))


def error_of(model: nn.Module, inputs: Any) -> str:
    """The message, which is one line, from an error of ours."""
    modes = [module.training for module in model.modules()] if isinstance(model, nn.Module) else []
    with pytest.raises(lm.LayerMergeError) as caught:
        lm.trace(model, inputs)
    assert isinstance(caught.value, TraceError)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    assert len(message) < 700
    assert not modes or [module.training for module in model.modules()] == modes
    return message


def images(batch: int = 2, channels: int = 3) -> Tensor:
    return torch.randn(batch, channels, 8, 8)


def test_control_flow_that_depends_on_values() -> None:
    def branch(_net: nn.Module, x: Tensor) -> Tensor:
        if x.mean() > 0:
            return x
        return -x

    message = error_of(Net(branch), images())
    assert re.search(PLACE, message)
    assert "x.mean() > 0" in message
    assert "control flow" in message


def test_control_flow_inside_a_named_module() -> None:
    class Gate(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if bool(x.sum() > 0) else -x

    message = error_of(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(Gate())), images())
    assert "in '1.0'" in message
    assert re.search(PLACE, message)


def test_control_flow_that_happens_to_hand_its_input_through() -> None:
    """It does nothing to these values, but may to others: no stand-in for stochastic depth."""

    class Gate(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if bool(x.abs().sum() > 0) else -x

    message = error_of(nn.Sequential(nn.Conv2d(3, 4, 3), Gate(), nn.Conv2d(4, 4, 3)), images())
    assert re.search(PLACE, message)


def test_python_number_from_a_tensor() -> None:
    message = error_of(Net(lambda _net, x: x * int(x.abs().sum().item())), images())
    assert re.search(PLACE, message)


def test_no_conv_at_all() -> None:
    message = error_of(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), images())
    assert message.startswith("Sequential calls no 2-d convolution")


def test_only_one_dimensional_convs() -> None:
    assert "calls no 2-d convolution" in error_of(nn.Sequential(nn.Conv1d(3, 4, 3)), torch.randn(2, 3, 9))


def test_wrong_number_of_channels() -> None:
    message = error_of(Net(), images(channels=4))
    assert "in 'first'" in message
    assert re.search(r"expected input.* to have 3 channels, but got 4 channels", message)
    assert "check their number and shapes" in message


def test_input_smaller_than_a_kernel() -> None:
    assert "in '1'" in error_of(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 9)), images())


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param((), id="none"),
        pytest.param((torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, 8, 8)), id="two"),
        pytest.param({"picture": torch.zeros(2, 3, 8, 8)}, id="unknown name"),
    ],
)
def test_wrong_number_of_inputs(inputs: Any) -> None:
    message = error_of(Net(), inputs)
    assert "Net.forward(x:" in message
    assert "cannot take these example inputs" in message


@pytest.mark.parametrize("inputs", [3.0, {"x": 3}, (torch.tensor(1.0),)])
def test_inputs_without_a_batch(inputs: Any) -> None:
    message = error_of(Net(), inputs)
    assert "torch.randn(2, 3, 224, 224)" in message or "in 'first'" in message


def test_an_image_without_a_batch_dimension() -> None:
    """torch runs it, and its channels look like a batch: the user needs to hear that one is missing."""
    message = error_of(Net(), torch.randn(3, 8, 8))
    assert "batch dimension" in message
    assert "report it" not in message


def test_batch_size_written_into_the_model() -> None:
    message = error_of(Net(lambda _net, x: x.reshape(2, 4, 8, 8)), images(batch=2))
    assert "batch size" in message
    assert re.search(PLACE, message) or "'" in message


def test_batch_of_one_with_batch_norm_on_single_pixels() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
    message = error_of(model, images(batch=1))
    assert "in '3'" in message
    assert "batch of 2 or more" in message


def test_batch_of_one_is_fine_elsewhere() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    lifted = lm.trace(model, images(batch=1)).module
    x = images(batch=3)
    assert torch.allclose(model(x), lifted(x), atol=1e-6)


def test_function_that_depends_on_the_mode() -> None:
    message = error_of(Net(lambda net, x: x * 2 if net.training else x), images())
    assert "train mode" in message
    assert "'second'" in message
    assert "must sit in a module of its own" in message


def test_statistics_that_no_standard_norm_keeps() -> None:
    class Running(nn.Module):
        seen: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.seen.add_(x.detach().abs().mean())
            return F.relu(self.conv(x))

    message = error_of(Running(), images())
    assert "buffer 'seen'" in message


def test_an_output_that_cannot_be_captured() -> None:
    class Opaque(Net):
        def forward(self, x: Tensor) -> Any:
            class Result:
                value = super(Opaque, self).forward(x)

            return Result()

    assert "torch.export cannot trace the model" in error_of(Opaque(), images())


def test_an_error_inside_the_users_code() -> None:
    text = "first line\nsecond line"

    def fail(_net: nn.Module, _x: Tensor) -> Tensor:
        raise RuntimeError(text)

    message = error_of(Net(fail), images())
    assert "first line" in message
    assert "second line" not in message
    assert re.search(PLACE, message)


@pytest.mark.parametrize("code", [0, 3, "enough"])
def test_a_model_that_ends_the_process(code: object) -> None:
    """Else the command would end with an exit code of the model's choice."""

    def leave(_net: nn.Module, _x: Tensor) -> Tensor:
        raise SystemExit(code)

    message = error_of(Net(leave), images())
    assert f"it calls sys.exit({code})" in message
    assert re.search(PLACE, message)


def test_ctrl_c_is_no_error_of_the_model() -> None:
    def interrupt(_net: nn.Module, _x: Tensor) -> Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lm.trace(Net(interrupt), images())


def test_what_is_no_module() -> None:
    number: Any = 3
    assert error_of(number, images()) == "trace: model is 3; give a torch.nn.Module"


def test_a_model_that_cannot_be_copied() -> None:
    model = Net()
    model.lock = threading.Lock()  # type: ignore[assignment]
    message = error_of(model, images())
    assert message.startswith("the model cannot be copied: cannot pickle '_thread.lock' object")
    assert "locks" in message


def test_nothing_is_printed_beside_the_error(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """torch.export logs a warning and prints its graph so far."""
    error_of(Net(lambda _net, x: x if x.sum() > 0 else -x), images())
    assert capfd.readouterr() == ("", "")
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []
