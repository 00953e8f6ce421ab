"""The benchmark of detectors: pictures are the same wherever they are drawn; boxes and agreement by hand and slowly."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks import agreement
from benchmarks.agreement import Boxes, Interval, Matches, Overlap
from benchmarks.detector_results import DetectorResult, briefly, name_of, read_results, table, unreachable, write_result
from benchmarks.drawn_pictures import KINDS, draw_folder
from benchmarks.missing import write_missing
from numpy.random import default_rng
from PIL import Image

from layermerge.errors import InfeasibleBudget
from layermerge.runs.records import Environment, Report
from layermerge.tasks.base import Score

SIDE = 64


# -- pictures


@pytest.mark.parametrize("name", KINDS)
def test_a_picture_depends_on_its_seed_and_number_alone(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    few, more = draw_folder(kind, tmp_path / "few", 2, 5), draw_folder(kind, tmp_path / "more", 3, 5)
    assert [file.read_bytes() for file in few] == [file.read_bytes() for file in more[:2]]
    others = draw_folder(kind, tmp_path / "others", 2, 6)
    assert len({file.read_bytes() for file in (*more, *others)}) == 5
    for file in more:
        with Image.open(file) as picture:
            assert (picture.size, picture.mode) == ((kind.side, kind.side), "RGB")


def test_what_is_there_is_not_drawn_again(tmp_path: Path) -> None:
    first, second = draw_folder(KINDS["ppocr"], tmp_path, 2, 0)
    first.write_bytes(b"mine")
    second.unlink()
    draw_folder(KINDS["ppocr"], tmp_path, 2, 0)
    assert first.read_bytes() == b"mine"
    assert second.is_file()


# -- boxes


def said(seed: int) -> agreement.Array:
    """What a network might answer about a picture of 64 x 64."""
    draws = default_rng(seed)
    anchors = sum((SIDE // stride) ** 2 for stride in (8, 16, 32))
    return np.concatenate([draws.normal([0, 0, 1.2, 1.2], 0.3, (anchors, 4)), draws.random((anchors, 2))], 1)


def slowly_decoded(answers: agreement.Array) -> list[tuple[float, ...]]:
    """Anchor by anchor: boxes of which none overlaps a better one, the best first."""
    found, number = [], 0
    for stride in (8, 16, 32):
        for row in range(SIDE // stride):
            for column in range(SIDE // stride):
                x, y, w, h, objectness, of_class = map(float, answers[number])
                number += 1
                if objectness * of_class <= 0.1:
                    continue
                x, y = (x + column) * stride, (y + row) * stride
                w, h = math.exp(w) * stride, math.exp(h) * stride
                found.append((x - w / 2, y - h / 2, x + w / 2, y + h / 2, objectness * of_class))
    kept: list[tuple[float, ...]] = []
    for box in sorted(found, key=lambda box: -box[4]):
        if all(slow_overlap(box, other) <= 0.45 for other in kept):
            kept.append(box)
    return kept


def slow_overlap(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    common = width * height if width > 0 and height > 0 else 0.0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return common / (sum(areas) - common)


@pytest.mark.parametrize("seed", range(4))
def test_decoding_equals_a_slow_one(seed: int) -> None:
    answers = said(seed)
    boxes = agreement.decode(answers, SIDE)
    expected = slowly_decoded(answers)
    above = int((answers[:, 4] * answers[:, 5] > 0.1).sum())
    assert 5 < len(expected) < above < len(answers), "some are left out for their score, some as they overlap"
    assert np.concatenate([boxes.corners, boxes.scores[:, None]], 1) == pytest.approx(np.array(expected))


def test_nothing_above_the_threshold_is_no_box() -> None:
    answers = said(0)
    answers[:, 4] = 0.0
    assert len(agreement.decode(answers, SIDE)) == 0


def test_pieces_of_a_text_map() -> None:
    text = np.zeros((20, 30), np.float32)
    text[2:6, 3:13] = 0.8
    text[10:15, 5:25] = 0.9
    text[18, 1:4] = 0.9  # a speck
    boxes = agreement.text_boxes(text)
    assert boxes.corners.tolist() == [[5, 10, 25, 15], [3, 2, 13, 6]]
    assert boxes.scores == pytest.approx([0.9, 0.8])
    assert len(agreement.text_boxes(np.zeros((8, 8)))) == 0


# -- agreement


def boxes(*rows: tuple[float, float, float, float, float]) -> Boxes:
    given = np.array(rows, float).reshape(-1, 5)
    return Boxes(given[:, :4], given[:, 4])


def test_matching_by_hand() -> None:
    truth = boxes((0, 0, 10, 10, 1), (20, 0, 30, 10, 1))
    # The second takes nothing, as the first has taken what it overlaps; the third overlaps by 0.6; the fourth by nothing.
    found = boxes((0, 0, 10, 10, 0.9), (0, 0, 10, 9, 0.8), (20, 0, 30, 6, 0.7), (50, 50, 60, 60, 0.6))
    assert agreement.match(found, truth, 0.5).true.tolist() == [True, False, True, False]
    assert agreement.match(found, truth, 0.75).true.tolist() == [True, False, False, False]
    assert agreement.match(boxes(), truth, 0.5).wanted == 2
    assert agreement.match(found, boxes(), 0.5).true.tolist() == [False] * 4


def test_average_precision_by_hand() -> None:
    # Of 4 boxes to find; by falling score: true, false, true, true, false. Precision where recall rises: 1, 2/3, 3/4, of which
    # the envelope is 1, 3/4, 3/4: (1 + 3/4 + 3/4) / 4 = 0.625.
    pictures = [
        Matches(np.array([0.9, 0.7, 0.5]), np.array([True, True, False]), 3),
        Matches(np.array([0.8, 0.6]), np.array([False, True]), 1),
    ]
    assert agreement.average_precision(pictures) == pytest.approx(0.625)
    assert agreement.found_share(pictures) == 0.75


def test_average_precision_of_the_same_and_of_nothing() -> None:
    same = [agreement.match(one, one, 0.75) for one in (agreement.decode(said(seed), SIDE) for seed in range(3))]
    assert agreement.average_precision(same) == 1.0
    nothing = Matches(np.zeros(0), np.zeros(0, bool), 2)
    assert agreement.average_precision([nothing]) == 0.0
    assert agreement.average_precision([replace(nothing, wanted=0)]) == 1.0


def test_overlap_of_maps_by_hand() -> None:
    found, truth = np.zeros((2, 4)), np.zeros((2, 4))
    found[0], truth[:, :2] = 0.31, 1.0
    one = Overlap.of(found, truth)
    assert one == Overlap(2, 6)
    assert agreement.map_overlap([one, Overlap(4, 4)]) == 0.6
    assert agreement.map_overlap([Overlap(0, 0)]) == 1.0


def test_intervals_are_those_of_a_mean_over_pictures() -> None:
    given = default_rng(0).normal(3, 1, 400).tolist()
    found = agreement.bootstrapped(lambda part: float(np.mean(part)), given)
    half = 1.96 * float(np.std(given)) / 20
    assert found.value == pytest.approx(float(np.mean(given)))
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half), abs=0.02)
    assert found == agreement.bootstrapped(lambda part: float(np.mean(part)), given)


# -- the table


REPORT = Report(
    method="layermerge",
    budget="80%",
    label="untrained",
    budget_ms=24.0,
    stamp="",
    runtime="onnxruntime",
    threads=1,
    batch_size=1,
    original_ms=30.0,
    measured_ms=23.4,
    budget_kept=True,
    original_score=Score("distance to the original", 0.0, 120, 0.0, 0.0, "loss"),
    score=Score("distance to the original", 0.02, 120, 0.01, 0.03, "loss"),
    held_out=-0.02,
    convs_before=83,
    convs_after=60,
    epochs=0.0,
)
RESULT = DetectorResult(
    network="yolox",
    file="detector.onnx",
    report=REPORT,
    candidates=(),
    recovery=(),
    seeds={"held_out": 0},
    steps=0,
    minutes_trained=0.0,
    file_ms=31.0,
    original_ms=30.0,
    measured_ms=23.4,
    pictures=120,
    original_boxes=700,
    agreement={"mAP at IoU 0.5": Interval(0.91, 0.9, 0.92), "mAP at IoU 0.75": Interval(0.8, 0.78, 0.82)},
    environment=Environment("2026-01-01T00:00:00+00:00", "some", 2, "system", {"onnxruntime": "1"}, "abc"),
)


def test_results_come_back_and_are_tabled_in_order(tmp_path: Path) -> None:
    trained = replace(RESULT, report=replace(REPORT, label="trained-60min"), steps=900, minutes_trained=58.3)
    text = replace(RESULT, network="ppocr", agreement={"IoU of the text map": Interval(0.7, 0.6, 0.8)})
    small = replace(RESULT, report=replace(REPORT, budget="60%"))
    for one in (text, small, trained, RESULT):
        write_result(tmp_path, one)
    found = read_results(tmp_path)
    assert found == [RESULT, trained, small, text]
    lines = table(found)
    assert len(lines) == 8
    assert {line.count("|") for line in lines[:6]} == {lines[0].count("|")}
    assert lines[2].startswith(
        "| YOLOX (ddddocr) | 80% | none | 31.00 | 30.00 | 23.40 | 78.0% | 0.910 (0.900 to 0.920) | "
    )
    assert "| 80% | 58 |" in lines[3]
    assert lines[5].split(" | ")[7:] == ["-", "-", "-", "0.700 (0.600 to 0.800)", "- |"]
    boxes = "YOLOX (ddddocr) finds 5.8 boxes a picture; PP-OCRv4 text detector finds 5.8 boxes a picture"
    assert lines[6:] == ["", f"120 test pictures; {boxes}. some, commit abc, 2026-01-01."]
    assert table([])[0].startswith("Not run yet")
    assert briefly([])[0].startswith("Not run yet")


def test_a_short_table_has_a_line_a_budget() -> None:
    trained = replace(
        RESULT,
        report=replace(REPORT, label="trained-60min"),
        steps=900,
        minutes_trained=58.3,
        agreement={name: Interval(0.95, 0.9, 0.99) for name in RESULT.agreement},
    )
    text = replace(RESULT, network="ppocr", agreement={"IoU of the text map": Interval(0.7, 0.6, 0.8)})
    agreed = "mAP at IoU 0.5 / mAP at IoU 0.75"
    assert briefly([RESULT, trained, text])[2:] == [
        f"| YOLOX (ddddocr) | 78% | {agreed} | 0.910 / 0.800 | 0.950 / 0.950 (58 min) |",
        "| PP-OCRv4 text detector | 78% | IoU of the text map | 0.700 | not run yet |",
    ]
    assert briefly([trained])[2:] == [f"| YOLOX (ddddocr) | 78% | {agreed} |  | 0.950 / 0.950 (58 min) |"]


def test_a_budget_that_cannot_be_met_is_a_line_and_no_result(tmp_path: Path) -> None:
    write_result(tmp_path, RESULT)
    write_missing(tmp_path, name_of("ppocr", "60%"), InfeasibleBudget(39.0, 33.0, 38.0))
    assert read_results(tmp_path) == [RESULT]
    last = table([RESULT], unreachable(tmp_path))[-1]
    assert last.startswith("- PP-OCRv4 text detector at 60%: no choice of candidates runs in 33.0000 ms")


def test_results_that_stand_in_the_page_can_be_read() -> None:
    read_results(Path(__file__).resolve().parents[1] / "benchmarks" / "results" / "detectors")
