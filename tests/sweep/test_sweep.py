"""The sweep over published networks: seven of them here, and what it found in all of them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sweep.branches import residual_branches
from sweep.examination import EXACT, examine
from sweep.networks import Network, all_networks
from sweep.page import PAGE, page_text
from sweep.results import RESULTS, Finding, Results, read_findings
from sweep.runner import run

QUICK = (
    "timm:test_byobnet",  # published for tests such as these: the blocks of large networks, few of them
    "timm:test_efficientnet",
    "timm:test_mambaout",
    "timm:test_nfnet",
    "timm:test_resnet",
    "torchvision:resnet18, FrozenBatchNorm2d",
    "diffusers:AutoencoderKL",
)


@pytest.mark.parametrize("name", QUICK)
def test_a_network_of_each_kind_works(name: str) -> None:
    finding = examine(all_networks()[name])
    assert finding.failure is None
    assert finding.branches_found == finding.branches_expected


# -- what the whole sweep found


@pytest.fixture(scope="module")
def findings() -> dict[str, Finding]:
    return read_findings(RESULTS.read_text(encoding="utf-8").splitlines()[1:])


def test_the_page_is_made_of_the_findings(findings: dict[str, Finding]) -> None:
    assert PAGE.read_text(encoding="utf-8") == page_text(findings.values())


def test_nearly_all_networks_work(findings: dict[str, Finding]) -> None:
    assert findings.keys() == all_networks().keys()
    assert len(findings) >= 150
    traced = [finding for finding in findings.values() if finding.layers is not None]
    assert len(traced) >= 0.95 * len(findings)
    assert [finding.name for finding in traced if finding.failure] == []
    assert max(finding.difference or 0.0 for finding in traced) <= EXACT


@pytest.mark.parametrize(
    "name", ["efficientnet_b0", "mobilenetv3_small_100", "seresnet18", "regnety_002", "convnext_atto"]
)
def test_every_residual_branch_can_go(findings: dict[str, Finding], name: str) -> None:
    finding = findings[f"timm:{name}"]
    assert finding.branches_found == finding.branches_expected
    assert finding.branches_expected


def test_what_merges(findings: dict[str, Finding]) -> None:
    assert (findings["timm:mobileone_s0"].merging_share or 0.0) >= 0.9
    frozen, usual = findings["torchvision:resnet18, FrozenBatchNorm2d"], findings["torchvision:resnet18"]
    alike = {"layers", "blocks", "candidates", "removal_share", "merging_share", "branches_found"}
    assert frozen.model_dump(include=alike) == usual.model_dump(include=alike)


# -- the count of branches


class _Branches(nn.Module):
    """Four adds of a map and what is computed from it; one is read elsewhere, and one holds a conv that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.two, self.read, self.shared = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(x)
        x = x + self.two(self.one(x).relu_()) * x.mean((2, 3), keepdim=True)
        elsewhere = self.read(x)
        x = x + elsewhere
        x += self.shared(x)
        return x + self.shared(x), elsewhere


def test_branches_are_counted_on_the_calls_of_the_model() -> None:
    assert residual_branches(_Branches().eval(), torch.randn(2, 3, 8, 8)) == [frozenset({"one", "two"})]


# -- interrupted sweeps


def _network(name: str) -> Network:
    return Network(name, nn.Identity)


def _misbehave(network: Network) -> Finding:
    if network.name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if network.name == "endless":
        time.sleep(60)
    return Finding(name=network.name)


def test_a_crash_or_a_timeout_ends_one_network_only() -> None:
    networks = [_network(name) for name in ("fine", "killed", "endless", "also fine")]
    found = {one.name: one.failure for one in run(networks, _misbehave, jobs=2, limit=2)}
    assert found == {
        "fine": None,
        "killed": "its process ended with exit code -9",
        "endless": "not done within 2 seconds",
        "also fine": None,
    }


def test_an_interrupted_sweep_goes_on(tmp_path: Path) -> None:
    path, sources = tmp_path / "models.jsonl", {"sources": "a"}
    Results(path, sources).add(Finding(name="whole"))
    with path.open("a", encoding="utf-8") as file:
        file.write('{"name": "trunc')
    assert list(Results(path, sources).findings) == ["whole"]
    assert list(Results(path, {"sources": "b"}).findings) == []
