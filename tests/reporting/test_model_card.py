"""Model cards: the metadata is read back by another YAML library and by a hub's own reader; figures are those of the run."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

import layermerge as lm
from layermerge.reporting.facts import gather
from layermerge.reporting.model_card import card_text, write_cards
from layermerge.runs.records import Variant
from layermerge.tasks.base import Score
from reporting.report_runs import NASTY, finished_run, made_up, report, result

IDENTIFIER = re.compile(r"[a-z0-9_.-]+")


def read(text: str) -> tuple[dict[str, Any], str]:
    """The metadata, and what is behind it."""
    yaml = pytest.importorskip("ruamel.yaml")
    _, head, body = text.split("---\n", 2)
    return dict(yaml.YAML(typ="safe", pure=True).load(StringIO(head))), body


def card(licence: str | None = None, *, given: Any = None, **more: Any) -> tuple[dict[str, Any], str]:
    facts, shown = made_up(**more), result(given or report())
    return read(card_text(facts, shown.report, shown, licence))


# -- what it says


def test_the_metadata_hold_the_figures_of_the_result() -> None:
    metadata, _ = card(importance_setting={"task.task": "classification", "task.test": "Clothes: test"})
    assert metadata["library_name"] == "layermerge"
    assert metadata["base_model"] == "timm/resnet18"
    assert metadata["pipeline_tag"] == "image-classification"
    assert {"layermerge", "onnx"} <= set(metadata["tags"])
    assert metadata["metrics"] == ["accuracy"]
    (index,) = metadata["model-index"]
    (measured,) = index["results"]
    assert measured["task"]["type"] == "image-classification"
    assert measured["dataset"] == {"type": "clothes-test", "name": "Clothes: test"}
    figures = [(each["type"], each["value"]) for each in measured["metrics"]]
    assert figures == [("accuracy", 0.89), ("accuracy", 0.9), ("latency_ms", 11.5), ("latency_ms", 20.0)]
    assert all(IDENTIFIER.fullmatch(each["type"]) for each in measured["metrics"])


def test_the_text_says_where_latency_was_measured_and_how_sure_the_score_is() -> None:
    _, body = card()
    assert "| latency | 20.0 ms | 11.5 ms (1.74×) |" in body
    assert "| accuracy (%) | 90.00 % (88.00 to 91.70) | 89.00 % (87.00 to 90.00) |" in body
    assert "| convolutions | 36 | 20 |" in body
    assert "60% (12.0 ms), met" in body
    assert "onnxruntime on Some CPU (2 cores), 2 threads, batches of 4" in body
    assert "commit abc123" in body
    assert "layermerge compress runs/made-up/recipe.yaml" in body
    assert 'lm.load("model.onnx")' in body
    assert "InferenceSession('model.onnx'" in body
    assert "runs/made-up/layermerge" not in body  # files are named as they are beside the card


def test_a_missed_budget_and_a_large_loss_are_told() -> None:
    _, body = card(given=report(measured_ms=15.0, value=0.6, budget_kept=False))
    assert "Budget missed" in body
    assert "missed |" in body
    assert "large loss of accuracy" in body


def test_a_task_that_hubs_do_not_know_has_no_pipeline() -> None:
    distance = Score(name="distance", value=0.02, count=10, kind="loss")
    metadata, _ = card(
        given=report(original_score=replace(distance, value=0.0), score=distance),
        importance_setting={"task.task": "imitation"},
        model=None,
    )
    assert "pipeline_tag" not in metadata
    assert "base_model" not in metadata
    assert metadata["metrics"] == ["distance"]


def test_figures_that_are_no_numbers_are_left_out() -> None:
    metadata, body = card(given=report(score=Score(name="accuracy", value=float("nan"), count=10)))
    values = [each["value"] for each in metadata["model-index"][0]["results"][0]["metrics"]]
    assert values == [0.9, 11.5, 20.0]
    assert "nan" not in body.lower()


@pytest.mark.parametrize(
    ("model", "base"),
    [
        ("timm:resnet18.a1_in1k?num_classes=10", "timm/resnet18.a1_in1k"),
        ("diffusers:google/ddpm-cifar10-32", "google/ddpm-cifar10-32"),
        ("diffusers:/home/me/unet", None),
        ("python:mine:build", None),
        ("onnx:net.onnx", None),
    ],
)
def test_a_base_model_is_named_only_where_a_hub_has_it_under_that_name(model: str, base: str | None) -> None:
    assert card(model=model)[0].get("base_model") == base


def test_a_network_without_figures_says_so() -> None:
    metadata, body = read(
        card_text(made_up(), Variant(method="depth", budget="60%", label="plain", budget_ms=1.0), None, None)
    )
    assert "model-index" not in metadata
    assert "`layermerge export` measures" in body


# -- the licence


def test_no_licence_is_invented() -> None:
    metadata, body = card()
    assert "license" not in metadata
    assert "Not stated. The weights derive from those of the original, whose licence applies" in body


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ("Apache-2.0", {"license": "apache-2.0"}),
        ("My Company EULA 2", {"license": "other", "license_name": "My Company EULA 2"}),
    ],
)
def test_a_stated_licence_is_passed_on(stated: str, expected: dict[str, str]) -> None:
    metadata, body = card(stated)
    assert {key: value for key, value in metadata.items() if key.startswith("license")} == expected
    assert f"{stated}, as stated by whoever compressed the network" in body


def test_names_cannot_end_the_metadata_or_become_markup() -> None:
    name = f"a: b\n---\n# x `{NASTY}` | y"
    text = card_text(made_up(model=name), report(), result(report()), None)
    metadata, body = read(text)
    assert metadata["model-index"][0]["name"].startswith("a: b --- # x `")
    outside = re.sub(r"```.*?\n```", "", body, flags=re.DOTALL)  # of code, where a name stands as Python writes it
    assert "<" not in outside
    assert "\n# x" not in outside


# -- as a hub reads it


def test_a_hub_reads_the_card() -> None:
    hub = pytest.importorskip("huggingface_hub")
    shown = result(report())
    text = card_text(made_up(importance_setting={"task.task": "classification"}), shown.report, shown, "mit")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = hub.ModelCard(text).data
    assert (data.library_name, data.license, data.base_model) == ("layermerge", "mit", "timm/resnet18")
    assert [each.metric_value for each in data.eval_results] == [0.89, 0.9, 11.5, 20.0]


# -- where it is written


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_run(), tmp_path / "tiny"))


def test_every_network_of_a_run_has_its_card(copied: Path) -> None:
    places = [path.parent for path in copied.glob("*/*/*/result.json")]
    assert len(places) == 4
    for place in places:
        metadata, body = read((place / "README.md").read_text())
        told = json.loads((place / "result.json").read_text())
        values = [each["value"] for each in metadata["model-index"][0]["results"][0]["metrics"]]
        assert values == [
            pytest.approx(told[key] if isinstance(told[key], float) else told[key]["value"], abs=1e-6)
            for key in ("score", "original_score", "measured_ms", "original_ms")
        ]
        assert "a module given in Python" in body


def test_the_code_of_a_card_runs_beside_it(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (written,) = copied.glob("layermerge/*/*/README.md")
    blocks = re.findall(r"```python\n(.*?)\n```", written.read_text(), re.DOTALL)
    assert len(blocks) == 3
    monkeypatch.chdir(written.parent)
    for block in blocks:
        names: dict[str, Any] = {}
        exec(block.replace("model = ...", "import tiny_runs; model = tiny_runs.network()"), names)
        answer = names["outputs"][0] if "outputs" in names else names["fast"](torch.zeros(1, *gather(copied).inputs[0]))
        assert len(answer) == 1


def test_it_is_the_same_when_nothing_changed_and_another_when_figures_do(copied: Path) -> None:
    (place,) = copied.glob("layermerge/*/*/result.json")
    written = place.with_name("README.md")
    write_cards(gather(copied))
    before, touched = written.read_text(), written.stat().st_mtime_ns
    write_cards(gather(copied))
    assert (written.read_text(), written.stat().st_mtime_ns) == (before, touched)
    place.write_text(place.read_text().replace('"convs_after": ', '"convs_after": 9'))
    write_cards(gather(copied))
    assert written.read_text() != before


def test_the_recipe_states_the_licence(copied: Path) -> None:
    (place,) = copied.glob("layermerge/*/*/README.md")
    facts = replace(gather(copied), license="mit")
    write_cards(facts)
    assert read(place.read_text())[0]["license"] == "mit"
    write_cards(facts, "apache-2.0")
    assert read(place.read_text())[0]["license"] == "apache-2.0"


def test_settings_state_the_licence() -> None:
    assert lm.Settings(license="mit").license == "mit"
    with pytest.raises(lm.LayerMergeError, match="license"):
        lm.Settings(license="a\nb")
