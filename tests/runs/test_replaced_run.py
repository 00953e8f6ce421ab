"""A whole run that meets its budget only by replacing a gate: its mean is that of the images, the file is the network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import layermerge as lm
import tiny_runs
from layermerge.runs.steps import start_of
from replaceable import SqueezeExcite
from tiny_runs import CLASSES, arrays, contents, normalised, same_weights, served_logits, settings, task

RULES = lm.Rules(replace=("activations", "gates"), pin=("stem", "last"))


@pytest.fixture(autouse=True)
def _runtimes() -> Iterator[None]:
    with tiny_runs.priced_runtimes():
        yield


class GatedNet(nn.Module):
    """Two convs with a gate between them: replacing it is all that can be done to them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.gate, self.last = nn.Conv2d(3, 8, 3, padding=1), SqueezeExcite(8), nn.Conv2d(8, 8, 3)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.gate(nn.functional.silu(self.norm(self.stem(x))))
        return self.head(torch.relu(self.last(x)).mean((2, 3)))  # type: ignore[no-any-return]


def network() -> GatedNet:
    torch.manual_seed(1)
    return GatedNet().eval()


def test_a_budget_is_met_by_replacing_a_gate(tmp_path: Path) -> None:
    chosen = settings(rules=RULES)
    result = lm.compress(network(), task(), budget="70%", run_dir=tmp_path, settings=chosen)
    assert result.solution is not None
    assert [candidate.key for candidate in result.solution.candidates] == ["0-1:3x3g1", "1-3:gate", "3-4:3x3g1"]
    report = result.report
    assert (report.convs_before, report.convs_after, report.budget_kept) == (4, 2, True)
    images = normalised(arrays()["x_test"][:20])
    merged = result.module.eval()
    with torch.no_grad():
        served = served_logits(result.directory / "model.onnx", images)
        np.testing.assert_allclose(merged(torch.from_numpy(images)).numpy(), served, atol=1e-4)
    assert same_weights(lm.load(result.directory, network()), merged)
    before = contents(tmp_path)
    again = lm.compress(network(), task(), budget="70%", run_dir=tmp_path, settings=chosen)
    assert same_weights(again.module, merged)
    assert {name: text for name, text in contents(tmp_path).items() if name != "report.html"} == {
        name: text for name, text in before.items() if name != "report.html"
    }


def test_fine_tuning_starts_from_the_mean_over_training_images(tmp_path: Path) -> None:
    from layermerge.runs.context import open_context

    model = network()
    context = open_context(model, task(), tmp_path, settings(rules=RULES))
    menu = lm.plan(context.trace, RULES)
    net = start_of(context, [menu["1-3:gate"]])
    images = torch.from_numpy(normalised(arrays()["x_train"]))
    with torch.no_grad():
        values = model.gate.value(nn.functional.silu(model.norm(model.stem(images)))).mean(0)
    # Images are drawn with flips, from all that are not held out.
    torch.testing.assert_close(net.get_parameter("gate.grow_mean").detach()[0], values, atol=0.02, rtol=0)
