"""The diffusion benchmark's figures, by hand: paired differences, the table, and who is compared with whom."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benchmarks import claims as of_paper
from benchmarks import diffusion_results
from benchmarks.diffusion import lead_over
from benchmarks.diffusion_results import (
    METHODS,
    STUDY,
    DiffusionResult,
    Looks,
    lead_at,
    missing_of,
    name_of,
    orderings,
    read_results,
    shown,
    table,
    write_result,
)
from benchmarks.missing import write_missing
from benchmarks.paired_kid import Lead

from layermerge.errors import InfeasibleBudget
from layermerge.runs.environment import environment_now
from layermerge.runs.records import CONTROL, Report
from layermerge.tasks.base import Score


def result(method: str, budget: str, loss: float, lead: dict[str, Lead], ms: float = 5.0) -> DiffusionResult:
    report = Report(
        method=method,
        budget=budget,
        label="plain",
        budget_ms=float(budget[:-1]),
        stamp="",
        runtime="onnxruntime",
        threads=1,
        batch_size=16,
        original_ms=100.0,
        measured_ms=50.0,
        budget_kept=True,
        original_score=Score("noise loss", 0.03, 10_000, 0.029, 0.031, "loss"),
        score=Score("noise loss", loss, 10_000, loss - 0.001, loss + 0.001, "loss"),
        held_out=-1.0,
        convs_before=36,
        convs_after=30,
        epochs=1.0,
    )
    own, whole = {"onnxruntime": ms, "openvino": 8.0}, {"onnxruntime": 10.0, "openvino": 10.0}
    looks = Looks(2048, 25, 0.0123, 0.0045, None) if method == "layermerge" else None
    kid_lead = {name: (10 * gain, 10 * low, 10 * high) for name, (gain, low, high) in lead.items()}
    return DiffusionResult(
        report, (), {}, (), own, whole, looks, {"noise loss": lead, "KID": kid_lead}, environment_now()
    )


def write_all(folder: Path, layeronly: Lead) -> list[DiffusionResult]:
    ahead: Lead = (0.002, 0.001, 0.003)
    made = [
        result("layeronly", "85%", 0.035, {}),
        result("layermerge", "75%", 0.04, {"original-100pct": (-0.01, -0.012, -0.008), "depth-85pct": ahead}),
        result("layermerge", "85%", 0.033, {"depth-85pct": ahead, "layeronly-85pct": layeronly}),
        result("channels+layermerge", "60%", 0.05, {"channels+layeronly-60pct": ahead, "layeronly-85pct": ahead}),
        result("channels+layeronly", "60%", 0.052, {}),
        result(CONTROL, "100%", 0.03, {}),
    ]
    for one in made:
        write_result(one, folder)
    return made


def test_a_lead_is_the_mean_difference_on_the_same_images() -> None:
    gain, low, high = lead_over(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([2.0, 2.0, 4.0, 4.0]))
    # Differences 1, 0, 1, 0: mean a half, standard deviation 1/sqrt(3), over two is 0.288675.
    assert gain == 0.5
    assert (high - gain, gain - low) == pytest.approx((1.96 * 0.288675,) * 2, rel=1e-5)


def test_results_are_read_as_they_were_written_in_the_order_of_methods(tmp_path: Path) -> None:
    made = {one.name: one for one in write_all(tmp_path, (0.0, -0.1, 0.1))}
    found = read_results(tmp_path)
    assert [one.name for one in found] == [
        "original-100pct",
        "layermerge-85pct",
        "layermerge-75pct",
        "layeronly-85pct",
        "channels+layermerge-60pct",
        "channels+layeronly-60pct",
    ]
    assert all(made[one.name] == one for one in found)


def test_rows_say_speed_loss_and_distance(tmp_path: Path) -> None:
    write_all(tmp_path, (0.0, -0.1, 0.1))
    row = next(line for line in table(read_results(tmp_path)) if line.startswith("| layermerge | 75%"))
    assert row == (
        "| layermerge | 75% | 5.00 ms (2.00x) | 8.00 ms (1.25x) | 0.04000 | "
        "-0.01000 (-0.01200 to -0.00800) | - | 12.3 ± 4.5 | -100.0 (-120.0 to -80.0) | 30 |"
    )
    assert table([])[0].startswith("Not run yet")
    unseen = next(line for line in table(read_results(tmp_path)) if line.startswith("| layeronly | 85%"))
    assert unseen == "| layeronly | 85% | 5.00 ms (2.00x) | 8.00 ms (1.25x) | 0.03500 |  | - | - |  | 30 |"
    assert any("2,048 samples of 25 steps each" in line for line in table(read_results(tmp_path)))


def test_what_a_method_does_not_reach_is_no_result_but_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_all(tmp_path, (0.0, -0.1, 0.1))
    write_missing(tmp_path, name_of("depth", "85%"), InfeasibleBudget(39.0, 33.0, 38.0))
    assert len(read_results(tmp_path)) == 6
    monkeypatch.setattr(diffusion_results, "missing_of", lambda: missing_of(tmp_path))
    assert table(read_results(tmp_path))[-1].startswith("- depth at 85%: no choice of candidates runs in 33.0000 ms")


def test_only_networks_of_one_kind_are_compared(tmp_path: Path) -> None:
    write_all(tmp_path, (-0.001, -0.002, -0.0005))
    assert orderings("noise loss", METHODS[1:], read_results(tmp_path)) == [
        ("layeronly at 85%", (-0.001, -0.002, -0.0005)),
        ("layeronly after channels at 60%", (0.002, 0.001, 0.003)),
    ]
    assert orderings("KID", METHODS[1:], read_results(tmp_path))[0] == ("layeronly at 85%", (-0.01, -0.02, -0.005))


@pytest.mark.parametrize(
    ("rival_ms", "expected"),
    [
        (12.0, (-0.001, -0.002, 0.0)),  # slower than the control
        (9.0, (0.0, -0.0015, 0.0015)),  # halfway from the control to the network at 85 %
        (8.0, (0.001, -0.001, 0.003)),
        (6.5, (0.00175, 0.0005, 0.003)),  # three quarters of the way on to 75 %
        (5.0, (0.002, 0.001, 0.003)),  # faster than all
    ],
)
def test_a_rival_is_compared_at_its_own_latency(rival_ms: float, expected: Lead) -> None:
    rival = result("layeronly", "85%", 0.035, {}, rival_ms)
    curve = [
        result(CONTROL, "100%", 0.03, {rival.name: (-0.001, -0.002, 0.0)}, 10.0),
        result("layermerge", "85%", 0.03, {rival.name: (0.001, -0.001, 0.003)}, 8.0),
        result("layermerge", "75%", 0.03, {rival.name: (0.002, 0.001, 0.003)}, 6.0),
    ]
    assert lead_at(rival, curve, "noise loss") == pytest.approx(expected)
    assert lead_at(rival, curve, "KID") == pytest.approx([10 * bound for bound in expected])


@pytest.mark.parametrize(
    ("layeronly", "verdict"), [((0.001, 0.0005, 0.002), "yes"), ((-0.001, -0.002, -0.0005), "**no**")]
)
def test_the_claim_rests_on_every_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layeronly: Lead, verdict: str
) -> None:
    write_all(tmp_path, layeronly)
    monkeypatch.setattr(of_paper, "orderings", lambda figure, rivals: orderings(figure, rivals, read_results(tmp_path)))
    line = next(
        line for line in of_paper.claims() if line.startswith("| better than Depth and LayerOnly on a diffusion")
    )
    assert line.endswith(f"| {verdict} |")
    assert "noise loss: layeronly at 85%" in line
    assert f"KID: layeronly at 85% {shown('KID', (10 * layeronly[0], 10 * layeronly[1], 10 * layeronly[2]))}" in line


def test_a_claim_is_lost_by_either_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead: Lead = (0.002, 0.001, 0.003)
    found = {"noise loss": [("layeronly at 85%", ahead)], "KID": [("layeronly at 85%", (-0.002, -0.003, -0.001))]}
    monkeypatch.setattr(of_paper, "orderings", lambda figure, _: found[figure])
    line = next(
        line for line in of_paper.claims() if line.startswith("| better than Depth and LayerOnly on a diffusion")
    )
    assert line.endswith("KID: layeronly at 85% -2.0 (-3.0 to -1.0) | **no** |")


def test_channel_pruning_stands_beside_all_that_layermerge_made() -> None:
    """Halfway between LayerMerge at 75 % and LayerMerge after channel pruning; Depth's networks have no part in it."""
    rival = result("channels", "75%", 0.05, {}, 5.5)
    found = [
        rival,
        result("layermerge", "75%", 0.04, {rival.name: (0.01, 0.008, 0.012)}, 6.0),
        result("channels+layermerge", "60%", 0.052, {rival.name: (-0.002, -0.003, -0.001)}, 5.0),
        result("channels+depth", "60%", 0.06, {rival.name: (-0.01, -0.02, 0.0)}, 5.4),
    ]
    ((said, lead),) = orderings("noise loss", ["channels"], found)
    assert said == "channels at 75%"
    assert lead == pytest.approx((0.004, 0.0025, 0.0055))
    assert orderings("noise loss", METHODS[1:], found) == []


def test_kid_is_shown_in_thousandths() -> None:
    assert shown("KID", (0.0041, 0.003, 0.00525)) == "+4.1 (+3.0 to +5.2)"


def test_the_study_names_every_network_once() -> None:
    names = [name_of(method, budget) for method, budget in STUDY]
    assert len(names) == len(set(names)) == 12
