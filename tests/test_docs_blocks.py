"""What docs/ shows is true: python blocks run, commands parse, examples of files are read as those files.

The conventions: every ```python block runs, the blocks of a page one after the other in one namespace and one directory;
a block that begins with `# NAME.py` is also that file. `<!-- test: long = short, ... -->` right above a block replaces text, so
that tests train a step where a reader trains epochs; the notebook's replacements are in its test. Latency is priced, not
measured (see `tiny_runs`). Lines that call `layermerge` in any other block are parsed by the program's own parser; nothing of
them is run. What cannot run is ```text.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import yaml
from pydantic import TypeAdapter
from safetensors.torch import save_file

import layermerge.cli  # noqa: F401, so that every verb is known
from layermerge.cli.app import app
from layermerge.models import import_torchvision
from layermerge.runtimes.registry import RUNTIMES
from tiny_runs import Priced, PricedModules, network, task

ROOT = Path(__file__).resolve().parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
FENCE = re.compile(
    r"^(?:<!-- test: (?P<swaps>.*?) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
Namespace = dict[str, Any]


def blocks(page: Path, *kinds: str) -> Iterator[tuple[str, str]]:
    """(replacements, text) of every block of these kinds; of all other than python where none is named."""
    for found in FENCE.finditer(page.read_text(encoding="utf-8")):
        if found["kind"] in kinds if kinds else found["kind"] != "python":
            yield found["swaps"] or "", found["text"]


# -- python

PAGES = [page for page in [*DOCS, ROOT / "README.md"] if any(blocks(page, "python"))]


def _photos(place: Path) -> Namespace:
    """The image folder and the weights that the page on timm has."""
    from PIL import Image

    import_torchvision()  # before timm, where its wheel does not fit the installed torch
    import timm

    generator = np.random.default_rng(0)
    for part, name, number in product(("train", "val"), ("cat", "dog"), range(14)):
        folder = place / "photos" / part / name
        folder.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 255, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    save_file(timm.create_model("test_resnet", num_classes=2).state_dict(), place / "pets.safetensors")
    return {}


def _phone(place: Path) -> Namespace:
    """A network, a task, and a latency table that came back from a device of another kind."""
    from layermerge.planning.plan import plan
    from layermerge.runs.begin import begin_run
    from layermerge.tables.measuring import measure_latency
    from layermerge.tracing.trace import trace

    model, own = network(), task()
    traced = trace(model, own.example_inputs())
    menu = plan(traced)
    table = place / "runs" / "phone" / "latency.jsonl"
    begin_run(table.parent, traced, menu)
    measure_latency(menu, trace=traced, runtime="onnxruntime", path=table)
    provenance, *rows = table.read_text(encoding="utf-8").splitlines(keepends=True)
    document = json.loads(provenance)
    document["provenance"]["processor"] = "another"
    table.write_text(json.dumps(document) + "\n" + "".join(rows), encoding="utf-8")
    return {"model": model, "task": own}


GIVEN: dict[str, Callable[[Path], Namespace]] = {"timm.md": _photos, "devices.md": _phone}
LEFT = {
    "README.md": ["runs/clothes/layeronly/90pct/plain/model.onnx", "runs/a/solution.json", "runs/a/model.onnx"],
    "timm.md": ["runs/pets/layermerge/90pct/plain/model.onnx"],
    "own_model.md": [
        "runs/mine/layermerge/90pct/plain/model.onnx",
        "runs/own/model.onnx",
        "runs/own/solution.json",
    ],
    "unlabelled.md": ["runs/detector/layermerge/90pct/plain/model.onnx"],
    "onnx_files.md": ["detector.onnx"],
    "devices.md": ["runs/phone/importance.jsonl", "runs/phone/model.onnx"],
    "diffusion.md": ["runs/unet/layermerge/80pct/plain/solution.json"],
}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(RUNTIMES, "onnxruntime", Priced)
    monkeypatch.setitem(RUNTIMES, "torch", PricedModules)
    prepare = GIVEN.get(page.name)
    namespace: Namespace = {"__name__": "__main__"} | (prepare(tmp_path) if prepare else {})
    for swaps, text in blocks(page, "python"):
        code = _swapped(text, swaps)
        if file := re.match(r"# (\w+\.py)\n", code):
            (tmp_path / file[1]).write_text(code, encoding="utf-8")
            monkeypatch.delitem(sys.modules, file[1].removesuffix(".py"), raising=False)
        exec(compile(code, page.name, "exec"), namespace)
    for name in LEFT.get(page.name, []):
        assert (tmp_path / name).is_file()


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All cells in order, and the report that the page shows is one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(RUNTIMES, "onnxruntime", Priced)
    notebook = json.loads((ROOT / "docs" / "tutorial.ipynb").read_text(encoding="utf-8"))
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    namespace: Namespace = {"__name__": "__main__"}
    # Fewer layers to choose from, so a smaller table; priced latencies have other budgets within reach.
    swaps = "epochs=1 = steps=2, held_out=200 = held_out=40, [6-9] = [4-9], 80% = 97%, 70% = 92%"
    for text in _swapped("\0".join(code), swaps).split("\0"):
        exec(compile(text, "tutorial.ipynb", "exec"), namespace)
    assert namespace["result"].report.measured_ms < namespace["gentler"].report.measured_ms
    assert (tmp_path / "runs" / "tutorial" / "report.html").is_file()
    printed = [out for cell in notebook["cells"] for out in cell.get("outputs", [])]
    assert any("1500" in "".join(out.get("text", "")) for out in printed), "no outputs; run: make tutorial"
    assert "runs/tutorial" in (ROOT / "docs" / "tutorial_report.html").read_text(encoding="utf-8")


def _swapped(text: str, swaps: str) -> str:
    for swap in filter(None, swaps.split(", ")):
        long, short = swap.split(" = ")
        assert long in text, f"the block has no '{long}' to replace"
        text = text.replace(long, short)
    return text


# -- commands

PROGRAM: Any = typer.main.get_command(app)
START = re.compile(r"^(?:[A-Z_]+=\S+ )*(?:layermerge|torchrun .*?-m layermerge) ")


def _commands(page: Path) -> Iterator[str]:
    for _, text in blocks(page):
        for line in text.replace("\\\n", " ").splitlines():
            if START.match(line):
                yield START.sub("", line)


COMMANDS = [(page, command) for page in [*DOCS, ROOT / "README.md"] for command in _commands(page)]


@pytest.mark.parametrize(
    "command", [text for _, text in COMMANDS], ids=[f"{page.name}: {text[:50]}" for page, text in COMMANDS]
)
def test_commands_are_understood(command: str) -> None:
    verb, *arguments = shlex.split(command, comments=True)
    PROGRAM.commands[verb].make_context(verb, arguments)  # parses and checks; runs nothing


@pytest.mark.parametrize("page", [*DOCS, ROOT / "README.md"], ids=lambda page: page.name)
def test_commands_in_sentences_have_real_options(page: Path) -> None:
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    for verb, rest in re.findall(r"`(?:[^`]*-m )?layermerge ([a-z]+)([^`]*)`", prose):
        known = {option for parameter in PROGRAM.commands[verb].params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", rest)) <= known


# -- examples of files

KINDS = {
    "plan.json": "runs.plan_file.PlanFile",
    "original.json": "runs.records.OriginalScore",
    "choice.json": "runs.records.Choice",
    "channels.json": "runs.records.ChannelShare",
    "solution.json": "runs.records.SavedNetwork",
    "variant.json": "runs.records.Variant",
    "result.json": "runs.records.Report",
    "int8.json": "runs.records.Int8Result",
}


def _kind(name: str) -> type[Any]:
    """What a file begins with, a dataclass of ours."""
    module, _, kind = KINDS[name].rpartition(".")
    return getattr(import_module(f"layermerge.{module}"), kind)  # type: ignore[no-any-return]


def _examples() -> Iterator[tuple[str, str, str]]:
    """(heading, kind of block, text) of the page on file formats."""
    page = (ROOT / "docs" / "file_formats.md").read_text(encoding="utf-8")
    for section in page.split("\n## ")[1:]:
        for found in FENCE.finditer(section):
            yield section.partition("\n")[0], found["kind"], found["text"]


def test_every_kind_of_json_file_is_on_the_page() -> None:
    assert {heading.split(" ")[0] for heading, kind, _ in _examples() if kind == "json"} == KINDS.keys()


@pytest.mark.parametrize("name", KINDS)
def test_examples_of_files_have_every_key_and_are_such_files(name: str) -> None:
    (text,) = [text for heading, kind, text in _examples() if kind == "json" and heading.split(" ")[0] == name]
    assert json.loads(text).keys() == {field.name for field in fields(_kind(name))}
    TypeAdapter(_kind(name)).validate_json(text)


def test_examples_of_tables_are_tables(tmp_path: Path) -> None:
    from layermerge.tables.table import Table
    from layermerge.tuning.recovery import JSONL, read_recovery

    tables = [(heading, text) for heading, kind, text in _examples() if kind == "jsonl"]
    assert len(tables) == 3
    for heading, text in tables:
        (tmp_path / JSONL).write_text(text, encoding="utf-8")
        rows = Table.read(tmp_path / JSONL).rows if heading.startswith("latency") else read_recovery(tmp_path)
        assert rows


@pytest.mark.parametrize("page", [page for page in DOCS if any(blocks(page, "yaml"))], ids=lambda page: page.name)
def test_yaml_blocks_are_recipes(page: Path) -> None:
    from layermerge.runs.recipe import RunRecipe

    for _, text in blocks(page, "yaml"):
        RunRecipe.model_validate(yaml.safe_load(text))


# -- pictures


@pytest.mark.parametrize("picture", sorted((ROOT / "docs" / "pictures").glob("*.svg")), ids=lambda path: path.name)
def test_pictures_are_shown_and_fit_both_colour_schemes(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in text
    assert 'role="img"' in text
    assert any(f"](pictures/{picture.name})" in page.read_text(encoding="utf-8") for page in DOCS)


# -- places within pages

PLACES = [
    (page, link, anchor)
    for page in DOCS
    for link, anchor in re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", page.read_text(encoding="utf-8"))
    if not link.startswith("api/")  # which has no headings before the site is built; that checks every link and anchor
]


@pytest.mark.parametrize(("page", "link", "anchor"), PLACES)
def test_links_lead_to_headings(page: Path, link: str, anchor: str) -> None:
    text = (page.parent / link if link else page).read_text(encoding="utf-8")
    slugs: list[str] = []
    for heading in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        slugs.append(f"{slug}-{slugs.count(slug)}" if slug in slugs else slug)
    assert anchor in slugs
