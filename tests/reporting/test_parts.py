"""Parts of the page without a browser: charts as XML, colours by arithmetic, commands and snippets that can be run."""

from __future__ import annotations

import re
import shlex
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import layermerge.reporting
from layermerge.reporting.commands import Commands
from layermerge.reporting.fact_records import FileFacts
from layermerge.reporting.html.chart import Band, Chart, Mark, Series, chart
from layermerge.reporting.html.markup import Markup, el
from layermerge.reporting.html.snippets import snippets
from layermerge.reporting.page import page_text
from layermerge.runs.data_recipe import DataRecipe
from layermerge.runs.recipe import RunRecipe
from reporting.report_runs import made_up, report, result

PAGE = Path(layermerge.reporting.__file__).parent / "page"


# -- charts


def drawn(series: list[Series], **more: Any) -> ElementTree.Element:
    given = Chart(label="a chart", x="x", y="y", series=tuple(series), **more)
    return ElementTree.fromstring(chart(given))


def marks(figure: ElementTree.Element) -> list[tuple[float, float]]:
    found = figure.findall("./svg//svg[@class='at']")
    return [(float((mark.get("x") or "").rstrip("%")), float(mark.get("y") or 0)) for mark in found]


def test_marks_lie_in_proportion() -> None:
    points = [(1.0, 10.0), (2.0, 30.0), (4.0, 20.0)]
    places = marks(drawn([Series("a", "s0", tuple(Mark(x, y) for x, y in points))]))
    for axis in (0, 1):
        given, found = np.array(points)[:, axis], np.array(places)[:, axis]
        slope, rest = np.polyfit(given, found, 1)
        assert np.allclose(slope * given + rest, found, atol=0.01)
        assert slope > 0 if axis == 0 else slope < 0
    assert all(0 < x < 100 for x, _ in places)


def test_marks_that_would_hide_another_are_rings() -> None:
    same = [Series(name, f"s{place}", (Mark(1.0, 1.0), Mark(2.0, float(place)))) for place, name in enumerate("ab")]
    figure = drawn(same)
    assert len(figure.findall("./svg//path[@class='mark ring']")) == 1
    assert len(figure.findall("./svg//path[@class='mark']")) == 3


def test_a_band_is_marked_as_one_and_nothing_is_drawn_without() -> None:
    measured = [Series("measured", "s0", (Mark(1.0, 0.9, low=0.8, high=0.95),))]
    band = Band("estimated: not measured", ((0.5, 0.7, 0.6, 0.8), (1.0, 0.9, 0.85, 0.92)))
    figure = drawn(measured, band=band)
    assert len(figure.findall("./svg/g[@class='band']//path")) == 4
    assert "estimated: not measured" in "".join(figure.itertext())
    assert drawn(measured).find("./svg/g[@class='band']") is None


@pytest.mark.parametrize("values", [[(1.0, 1.0)], [(0.0, 0.0), (0.0, 0.0)], [(1e-6, 5e7), (2e-6, 5e7)]])
def test_charts_of_anything(values: list[tuple[float, float]]) -> None:
    figure = drawn([Series("a", "s0", tuple(Mark(x, y) for x, y in values))])
    assert len(marks(figure)) == len(values)


def test_a_sentence_instead_of_a_chart_for_few_points() -> None:
    method = made_up().methods[0]
    (chosen,) = method.choices
    solution = replace(chosen.choice.solution, rounds=())
    few = (replace(method, choices=(replace(chosen, choice=replace(chosen.choice, solution=solution)),)),)
    text = page_text([made_up(methods=few, curves=())])
    assert "11.0 ms predicted, 11.5 ms measured." in text
    assert "Measured against predicted latency" not in text
    assert "Nothing was fine-tuned" in text
    assert 'aria-label="Measured against predicted latency"' in page_text([made_up()])


# -- colours


def colours() -> list[dict[str, str]]:
    """The light theme, and the dark one as it is chosen and as the system asks for it."""
    css = (PAGE / "colours.css").read_text(encoding="utf-8")
    blocks = [
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
        for block in re.findall(r":root[^{]*\{(.*?)\}", css, re.S)
    ]
    assert len(blocks) == 3
    assert blocks[1] == blocks[2]
    assert blocks[0].keys() == blocks[1].keys()
    return blocks[:2]


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


DRAWN = [
    *(f"s{place}" for place in range(6)),
    "control",
    "band",
    "kept",
    "accent",
    "removed",
    "fixed",
    "axis",
    "good",
    "fair",
    "bad",
]
READ = [
    ("ink", "paper"), ("ink", "raised"), ("muted", "paper"), ("muted", "raised"), ("on-kept", "kept"), ("on-accent", "accent"),
    ("on-fixed", "fixed"), ("accent", "paper"),
    *((colour, f"{tone}-paper") for tone in ("good", "fair", "bad") for colour in ("ink", "muted", tone)),
]  # fmt: skip


def test_what_is_drawn_and_what_is_read_stands_out() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    for theme in colours():
        weak = {name: contrast(theme[name], theme["paper"]) for name in DRAWN}
        assert {name: ratio for name, ratio in weak.items() if ratio < 3} == {}
        faint = {pair: contrast(theme[pair[0]], theme[pair[1]]) for pair in READ}
        assert {pair: ratio for pair, ratio in faint.items() if ratio < 4.5} == {}


def test_every_colour_of_the_style_sheets_has_a_name() -> None:
    for path in PAGE.glob("*.css"):
        if path.name != "colours.css":
            text = path.read_text(encoding="utf-8")
            assert not re.findall(r"#[0-9a-fA-F]{3,6}\b(?![\w-]*\s*[{,])", re.sub(r"#[\w-]+ svg", "", text)), path.name
            assert set(re.findall(r"var\(--([\w-]+)\)", text)) <= colours()[0].keys() | {"tone", "tone-paper"}


# -- commands and snippets


def commands(tmp_path: Path, **recipe: Any) -> Commands:
    data = DataRecipe(source="embedded")
    return Commands(
        tmp_path / "a run", tmp_path / "a run" / "recipe.yaml", RunRecipe(model="demo:clothes", data=data, **recipe)
    )


def test_commands_say_what_the_recipe_does_not(tmp_path: Path) -> None:
    own = commands(tmp_path)
    assert shlex.split(own.for_budget("layermerge", "delta", "45%")) == [
        "layermerge", "compress", "--run-dir", str(tmp_path / "a run"), "--budget", "45%",
    ]  # fmt: skip
    assert shlex.split(own.for_budget("depth", "exp", "45%"))[-4:] == ["--method", "depth", "--set", "objective=exp"]
    again = shlex.split(own.again(report(label="short", epochs=0.0), "layermerge", "delta"))
    place = str(tmp_path / "a run-again")
    begin = [str(tmp_path / "a run" / "recipe.yaml"), "--run-dir", place, "--budget", "60%"]
    assert again[2:] == [*begin, "--label", "short", "--finetune", "none"]
    named = Commands(own.directory, own.recipe_file, RunRecipe(model="python:a:b", data=DataRecipe(source="embedded")))
    assert named.for_budget("layermerge", "delta", "45%").endswith(" --allow-python")


def test_runs_from_python_go_on_in_python(tmp_path: Path) -> None:
    own = Commands(tmp_path, tmp_path / "recipe.yaml", RunRecipe())
    assert own.for_budget("depth", "delta", "45%") == (
        f"layermerge.compress(model, task, budget='45%', run_dir={str(tmp_path)!r}, settings=Settings(method='depth'))"
    )
    assert (
        Commands(tmp_path, tmp_path / "recipe.yaml", None)
        .for_budget("depth", "delta", "45%")
        .startswith("layermerge.compress(")
    )


def test_the_snippet_for_torch_names_the_model() -> None:
    facts = made_up()
    text = dict(snippets(facts, facts.results[1]))["PyTorch"]
    assert "load_model('timm:resnet18').module" in text
    compile(text, "snippet", "exec")


def test_a_second_file_is_shown_beside_the_first() -> None:
    """Such as one of 8-bit integers."""
    own = result(report())
    small = FileFacts(
        "ONNX, int8", "model.int8.onnx", 300_000, 7.5, replace(own.report.score, value=0.87), "2 layers in float32"
    )
    text = page_text(
        [made_up(results=(result(report("original", "100%", 20.0)), replace(own, files=(*own.files, small))))]
    )
    for words in ("ONNX, int8", "300 kB", "7.50 ms", "87.00 %", "2 layers in float32"):
        assert words in text


def test_markup_escapes_what_is_not_markup() -> None:
    assert el("p", "<b>", title='"&') == '<p title="&quot;&amp;">&lt;b&gt;</p>'
    assert el("p", Markup("<b></b>"), [None, 1, ["x"]]) == "<p><b></b>1x</p>"
