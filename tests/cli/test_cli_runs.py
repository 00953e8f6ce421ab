"""The verbs that need data, from the command line: one JSON document, one line for every mistake, one verb after another."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import onnxruntime
import pytest
import yaml
from safetensors.torch import load_file, save_file

import tiny_runs
from command_line import FOLDER, MODEL, SETTINGS, Result, Run, document, folder, one_line, write_data, write_recipe
from layermerge.models import load_model
from layermerge.runs.methods import METHODS
from tiny_runs import accuracy_of, arrays, contents, normalised, only_learned, served_logits


@pytest.fixture(scope="module", autouse=True)
def _runtimes() -> Iterator[None]:
    with tiny_runs.priced_runtimes():
        yield


@pytest.fixture(autouse=True)
def _files(run: Run, tmp_path: Path) -> None:
    """Data and a recipe in the directory that commands run in."""
    del run
    write_data(arrays())
    write_recipe(tmp_path / "mine.yaml")


DONE: dict[str, Path] = {}


@pytest.fixture
def compressed(run: Run, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a finished `compress`, made once and copied here."""
    if not DONE:
        assert run("compress", "mine.yaml", "--allow-python", "--run-dir", "a").code == 0
        DONE["a"] = Path(shutil.copytree("a", tmp_path_factory.mktemp("done") / "a"))
    return Path(shutil.copytree(DONE["a"], tmp_path / "a", dirs_exist_ok=True))


# -- compress and compare


def test_compress_prints_figures_and_where_they_are(run: Run, compressed: Path) -> None:
    before = contents(compressed)
    result = run("compress", "mine.yaml", "--allow-python", "--run-dir", "a")
    assert result.code == 0, result.err
    lines = [line.strip() for line in result.out.splitlines() if line.strip()]
    assert lines[0] == "python:tiny_runs:network: layermerge at 70 %"
    assert lines[1].split() == ["before", "after"]
    assert lines[2].split()[:5] == ["latency", "10.290", "ms", "6.754", "ms"]
    assert "1.52×, predicted 6.754 ± " in lines[2]
    assert re.match(r"accuracy +92\.2 % +94\.4 %", lines[3])
    assert lines[4].startswith("convolutions")
    assert "Budget met: 6.75 ms measured on the exported file, budget 70 % (7.20 ms)." in lines[5]
    ending = lines[lines.index("next") + 1 :]
    assert ending[0].split() == [
        str(Path("a/report.html")),
        *["#", "the", "report:", "open", "it", "in", "a", "browser"],
    ]
    assert ending[1].startswith(str(Path("a/layermerge/70pct/plain")))
    assert "layermerge explain a " in ending[2]
    assert contents(compressed) == before


def test_compress_gives_one_json_document_whose_score_is_that_of_the_file(run: Run, compressed: Path) -> None:
    result = run("compress", "mine.yaml", "--allow-python", "--run-dir", "a", "--json")
    assert result.code == 0, result.err
    (report,) = json.loads(result.out)
    assert report.pop("directory") == str(Path("a/layermerge/70pct/plain"))
    assert report == json.loads((compressed / "layermerge/70pct/plain/result.json").read_text(encoding="utf-8"))
    data = arrays()
    logits = served_logits(compressed / "layermerge/70pct/plain/model.onnx", normalised(data["x_test"]))
    assert report["score"]["value"] == accuracy_of(logits, data["y_test"])


@pytest.mark.usefixtures("quick_clocks")
def test_compress_without_a_recipe_on_a_real_runtime(run: Run) -> None:
    """Flags alone; the model named on the command line needs no permission. No budget can be missed here by noise."""
    flags = [
        f"--set={part}={yaml.safe_dump(SETTINGS[part], default_flow_style=True)}" for part in ("importance", "finetune")
    ]
    flags += ["--set", "rules.max_kernel=3", "--runtime", "onnxruntime", "--budget", "1000%", "--budget", "2000%"]
    result = run("compress", *MODEL, "--data", "npz:data.npz", "--method", "layeronly", *flags, "--json")
    assert result.code == 0, result.err
    reports = json.loads(result.out)
    assert [(report["budget"], report["runtime"], report["method"]) for report in reports] == [
        ("1000%", "onnxruntime", "layeronly"),
        ("2000%", "onnxruntime", "layeronly"),
    ]
    assert Path("runs/python-tiny_runs-network/layeronly/1000pct/plain/model.onnx").is_file()


def stages_in(log: str) -> dict[str, list[tuple[int, int, str]]]:
    """By the title above them: the number, the total, and whether the result was there."""
    groups: dict[str, list[tuple[int, int, str]]] = {}
    for line in log.splitlines():
        if found := re.fullmatch(r"(\d+)/(\d+) [\w-]+ +\u2713 (.+)", line):
            groups[list(groups)[-1]].append((int(found[1]), int(found[2]), found[3]))
        elif " at " in line or line.startswith("the original"):
            groups[line] = []
    return groups


def test_the_stages_of_a_method_are_numbered_to_the_last_and_reused_the_second_time(run: Run, compressed: Path) -> None:
    log = run("compress", "mine.yaml", "--allow-python", "--run-dir", "a").err
    assert "\x1b" not in log
    ((title, stages),) = stages_in(log).items()
    assert title == "layermerge at 70%"
    assert stages == [(number, 8, "reused") for number in range(1, 9)]
    log = run("compress", "mine.yaml", "--allow-python", "--run-dir", "a", "--budget", "90%").err
    (stages,) = stages_in(log).values()
    assert [said == "reused" for *_, said in stages] == [True, True, True, True, False, False, False, False]
    assert compressed.is_dir()


@pytest.mark.usefixtures("compressed")
def test_the_stages_of_every_other_method_are_numbered_to_the_last(run: Run) -> None:
    methods = ("sequential", "channels", "channels+layeronly", "student")
    chosen = [word for method in methods for word in ("--method", method)]
    result = run("compare", "mine.yaml", "--allow-python", "--run-dir", "a", "--budget", "95%", *chosen)
    groups = stages_in(result.err)
    assert list(groups) == ["the original, fine-tuned as long", *(f"{method} at 95%" for method in methods)], result.err
    for title, stages in groups.items():
        totals = {total for _, total, _ in stages}
        assert [number for number, *_ in stages] == list(range(1, totals.pop() + 1)), title


def test_compare_prints_the_table_and_writes_it(run: Run, compressed: Path) -> None:
    before = contents(compressed)
    arguments = ("--method", "layermerge", "--method", "depth", "--budget", "70%", "--run-dir", "a")
    result = run("compare", "mine.yaml", "--allow-python", *arguments)
    assert result.code == 0, result.err
    written = (compressed / "comparison-plain.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip() for line in written.splitlines() if line.startswith("| ")]
    assert rows == ["method", "original", "layermerge", "method", "layermerge"]
    words = [line.split()[0] for line in result.out.splitlines() if line]
    assert words[:4] == ["Original:", "method", "original", "layermerge"]
    assert f"\n{Path('a/report.html')} " in result.out
    assert "- depth at 70%: no choice of candidates runs in " in result.out
    assert {"accuracy-plain.png", "recovery-plain.svg", "comparison-plain.csv"} <= set(contents(compressed))
    del before["report.html"]
    assert only_learned(before, contents(compressed))
    again = run("compare", "mine.yaml", "--allow-python", *arguments, "--json")
    assert [report["method"] for report in json.loads(again.out)] == ["original", "layermerge"]


# -- one verb after another


SOURCES = {
    "python": ("layermerge", "python:tiny_runs:network", "npz:data.npz", (), ("--allow-python",)),
    "folder": ("depth", "python:tiny_runs:network", "imagefolder:images", ("--input=3x12x12",), ("--allow-python",)),
    "demo": ("layeronly", "demo:clothes", "embedded", ("--set=data.held_out=30",), ()),
    "timm": (
        "layeronly",
        "timm:test_resnet?num_classes=3",
        "imagefolder:images",
        ("--input=3x32x32", "--weights=trained.safetensors"),
        (),
    ),
}


@pytest.mark.parametrize(
    "source", ["python", "folder", *(pytest.param(name, marks=pytest.mark.slow) for name in ("timm", "demo"))]
)
def test_verbs_compose_on_one_run_directory(run: Run, tmp_path: Path, source: str) -> None:
    """Nobody is asked twice: the first verb is told what the run is of, the others its budget."""
    method, model, data, sets, allowed = SOURCES[source]
    folder(tmp_path / "images")
    save_file(load_model("timm:test_resnet?num_classes=3").module.state_dict(), "trained.safetensors")
    few = [f"--set={part}={{steps: 1, batch_size: 4, lr: 0.01}}" for part in ("importance", "finetune")]
    few.append("--set=calibrate=32")
    normal = [f"--set=data.normalise={{mean: {list(tiny_runs.MEAN)}, std: {list(tiny_runs.STD)}}}"] * (source != "demo")
    told = (f"--method={method}", "--data", data, "--runtime=priced", *sets, *few, *normal)
    planned = run("plan", model, "--run-dir", "b", *told, "--json")
    layers = document(planned)["layers"]

    measured = document(run("latency", "b", "--json"))
    cost = document(run("importance", "b", *allowed, "--json"))
    untouched = sum(len(entry["layers"]) == 1 and len(entry["kept"]) == 1 for entry in document(planned)["candidates"])
    assert cost["entries"] == cost["scored"] + cost["ruled_out"] + cost["failed"] + untouched
    solved = document(run("solve", "b", "--budget", "90%", "--json"))
    assert solved["latency_ms"] <= 0.9 * measured["original_ms"]
    tables = {name: Path("b", name).read_bytes() for name in ("importance.jsonl", "latency.jsonl", "recipe.yaml")}

    place = Path("b") / method / "90pct" / "plain"
    tuned = document(run("finetune", "b", "--budget", "90%", *allowed, "--json"))
    assert tuned["90%"]["saved_to"] == str(place / "unmerged")
    merged = document(run("merge", "b", "--budget", "90%", *allowed, "--json"))
    assert merged["saved_to"] == str(place)
    assert merged["convs_after"] <= merged["convs_before"] <= len(layers)
    assert "None yet" in (place / "README.md").read_text()
    exported = document(run("export", "b", "--budget", "90%", *allowed, "--to", "fast.onnx", "--json"))
    assert f"value: {round(exported['score'], 6)}" in (place / "README.md").read_text()
    assert exported["convs"] == merged["convs_after"]
    assert Path("fast.onnx").read_bytes() == (place / "model.onnx").read_bytes()
    page = document(run("report", "b", "--no-pictures", "--json"))
    result = page["runs"][0]["results"][0]["report"]
    assert (result["method"], result["budget"], result["label"]) == (method, "90%", "plain")
    assert result["score"]["value"] == exported["score"]

    # compress is these steps and nothing else: it finds them done.
    before = contents(Path("b"))
    again = run("compress", "--run-dir", "b", "--budget", "90%", *allowed, "--json")
    assert again.code == 0, again.err
    assert json.loads(again.out)[0]["measured_ms"] == result["measured_ms"]
    assert {name: content for name, content in contents(Path("b")).items() if name != "report.html"} == {
        name: content for name, content in before.items() if name != "report.html"
    }
    assert only_learned(tables, contents(Path("b")))


def test_the_exported_file_of_the_verbs_scores_what_they_say(run: Run, compressed: Path) -> None:
    exported = document(run("export", "a", "--allow-python", "--to", "fast.onnx", "--json"))
    data = arrays()
    logits = served_logits(Path("fast.onnx"), normalised(data["x_test"]))
    assert exported["score"] == accuracy_of(logits, data["y_test"])
    session = onnxruntime.InferenceSession("fast.onnx", providers=["CPUExecutionProvider"])
    assert session.run(None, {session.get_inputs()[0].name: normalised(data["x_test"][:2])})[0].shape == (2, 3)
    assert compressed.is_dir()


def test_a_licence_is_stated_once_and_kept(run: Run, compressed: Path) -> None:
    (card,) = compressed.glob("*/*/*/README.md")
    assert "Not stated" in card.read_text()
    document(run("export", "a", "--allow-python", "--license", "apache-2.0", "--json"))
    assert "\nlicense: apache-2.0\n" in card.read_text()
    assert "license: apache-2.0" in (compressed / "recipe.yaml").read_text()
    document(run("compress", "--run-dir", "a", "--allow-python", "--json"))
    assert "\nlicense: apache-2.0\n" in card.read_text()
    assert "license" in run("export", "a", "--allow-python", "--license", "a: b\n", "--json").err


def test_an_experiment_does_not_become_the_runs_recipe(run: Run, compressed: Path) -> None:
    before = (compressed / "recipe.yaml").read_bytes()
    changed = ("--set", "finetune.steps=1", "--set", "finetune.lr=0.001", "--label", "short")
    result = run("finetune", "a", "--budget", "70%", *changed, "--allow-python", "--json")
    assert document(result)["70%"]["saved_to"] == str(Path("a/layermerge/70pct/short/unmerged"))
    assert (compressed / "recipe.yaml").read_bytes() == before


def test_what_the_recipe_does_not_say_yet_is_added_to_it(run: Run) -> None:
    assert run("plan", "python:tiny_runs:network", "--input", "3x12x12", "--run-dir", "b").code == 0
    assert "data: is missing" in one_line(run("importance", "b", "--allow-python"))
    few = "--set=importance={steps: 1, batch_size: 4}"
    told = ("--data", "npz:data.npz", "--set", "runtime=priced", few)
    assert run("importance", "b", "--allow-python", *told).code == 0
    recipe = yaml.safe_load(Path("b/recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["data"]["source"] == "npz:data.npz"
    assert recipe["runtime"] == "priced"
    assert "importance" not in recipe


@pytest.mark.parametrize("verb", ["merge", "export"])
def test_a_network_that_is_not_there_yet_says_how_to_make_it(run: Run, compressed: Path, verb: str) -> None:
    line = one_line(run(verb, "a", "--budget", "33%", "--allow-python"))
    assert "'a' has no network of layermerge at 33% (plain) yet; it has layermerge at 70%; fine-tune it first" in line
    assert compressed.is_dir()


def test_the_input_size_is_honoured_or_refused(run: Run, tmp_path: Path) -> None:
    """Images of a folder are brought to it; arrays have a size of their own."""
    folder(tmp_path / "images")
    line = one_line(run("compress", "mine.yaml", "--allow-python", "--run-dir", "d", "--input", "3x16x16"))
    assert "input is 3x16x16, but the images of npz:data.npz come as 3x12x12; leave out the input" in line
    assert nothing_written()
    few = ("--set=data.crop_pct=1.0", "--set=rules.max_kernel=3")
    planned = ("plan", "python:tiny_runs:network", "--data", "imagefolder:images", *few, "--run-dir", "e")
    assert run(*planned, "--input", "3x16x16").code == 0
    assert json.loads(Path("e/plan.json").read_text())["args"][0]["shape"][1:] == [3, 16, 16]
    Path("e/recipe.yaml").unlink()
    line = one_line(run(*planned, "--input", "3x12x12"))
    assert "(traced with 3x16x16 there, 3x12x12 now); give another run directory" in line


def test_a_budget_that_the_exported_file_misses_is_said(
    run: Run, compressed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine was busy, say; the choice had kept it."""
    place = compressed / "layermerge/70pct/plain"
    (place / "result.json").unlink()
    monkeypatch.setattr("layermerge.runs.steps.measured_beside", lambda *_: 9.0)
    result = run("compress", "--run-dir", "a", "--allow-python")
    assert result.code == 0
    assert "Budget missed by 24.9 %: 9.00 ms measured on the exported file, budget 70 % (7.20 ms)" in result.out
    assert "run the same command again" in " ".join(result.out.split())
    assert json.loads((place / "result.json").read_text())["budget_kept"] is False
    assert json.loads(run("compress", "--run-dir", "a", "--allow-python", "--json").out)[0]["budget_kept"] is False


def test_finetune_knows_the_recipe_and_its_place_follows_the_objective(run: Run, compressed: Path) -> None:
    before = contents(compressed)
    result = run("finetune", "a", "--budget", "70%", "--set", "objective=delta", "--allow-python", "--json")
    assert document(result)["70%"]["saved_to"] == str(Path("a/layermerge-delta/70pct/plain/unmerged"))
    assert only_learned(before, contents(compressed))


def test_finetune_says_what_it_did(run: Run, compressed: Path) -> None:
    assert "allow it with --allow-python" in one_line(run("finetune", "a"))  # run directories are passed around too
    result = run("finetune", "a", "--allow-python")
    assert result.code == 0, result.err
    place = re.escape(str(Path("a/layermerge/70pct/plain/unmerged")))
    assert re.search(rf"^70% +\d+\.\d % +saved to {place}$", result.out, re.MULTILINE)
    assert "\nlayermerge merge a --budget 70% --allow-python" in result.out
    assert compressed.is_dir()


def test_training_the_original_gives_weights_that_load_strictly(run: Run) -> None:
    tuned = document(run("finetune", "c", "--original", "--recipe", "mine.yaml", "--allow-python", "--json"))
    place = Path(tuned["100%"]["saved_to"])
    weights = place / "model.safetensors"
    state, given = load_file(weights), tiny_runs.network().state_dict()
    assert state.keys() == given.keys()
    assert any((state[name] != given[name]).any() for name in state)
    result = run("plan", "python:tiny_runs:network", "--input", "3x12x12", "--weights", str(weights), "--json")
    assert len(document(result)["layers"]) == 5
    save_file({name: value for name, value in state.items() if name != "head.bias"}, "lacking.safetensors")
    line = one_line(
        run("compress", "mine.yaml", "--allow-python", "--weights", "lacking.safetensors", "--run-dir", "d")
    )
    assert "lacks 'head.bias'" in line


# -- refusals


def nothing_written(folder: str = "d") -> bool:
    return not Path(folder).exists() or not contents(Path(folder))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "timm:resnt18"), "timm has no model 'resnt18'; did you mean"),
        (("--model", "python:absent:net"), "cannot import 'absent'"),
        (("--data", "npz:absent.npz"), "'absent.npz' does not exist; npz: needs the place of the images"),
        (("--data", "webdataset:x"), "'webdataset:x' does not name a source of images; give imagefolder:PATH"),
        (("--data", "npz:mine.yaml"), "'mine.yaml' is truncated or not an .npz of plain arrays"),
        (("--budget", "soon"), "budgets.0: cannot read the budget 'soon'; write a share"),
        (("--method", "magic"), f"unknown method 'magic'; choose one of {', '.join(METHODS)}"),
        (("--runtime", "tflite"), "unknown runtime 'tflite'; choose one of torch, "),
        (("--weights", "absent.pth"), "weights file 'absent.pth' does not exist"),
        (("--executor", "slurm"), "executor: Input should be 'local' or 'ray', not 'slurm'"),
        (("--set", "finetune.lrr=1"), "recipe 'mine.yaml': finetune.lrr: there is no such key"),
        (("--set", "finetune.lr=fast"), "recipe 'mine.yaml': finetune.lr: Input should be a valid number"),
        (("--set", "model.name=x"), "model.name: model is not a mapping, so it has no key name"),
        (("--set", "finetune.lr"), "--set finetune.lr: write KEY=VALUE, such as finetune.lr=0.01"),
        (("--set", "=3"), "--set =3: write KEY=VALUE"),
        (("--set", "label=[a"), "--set label=[a: '[a' is not valid YAML"),
        (("--set", "label=2024-13-45"), "--set label=2024-13-45: '2024-13-45' is not valid YAML"),
        (("--set", "input=3xx"), "input shape '3xx' is not of the form"),
        (("--set", "data.held_out=5000"), "held_out=5000 of 160 images leaves nothing"),
        (("--set", "rules.pin=[zzz]"), "pin 'zzz' matches no layer"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(run: Run, arguments: tuple[str, ...], message: str) -> None:
    line = one_line(run("compress", "mine.yaml", "--allow-python", "--run-dir", "d", *arguments))
    assert line.startswith("error: ")
    assert message in line
    assert nothing_written()


def test_code_named_by_a_recipe_runs_only_when_allowed(run: Run) -> None:
    message = "the recipe names code to run ('python:tiny_runs:network'); allow it with --allow-python"
    for command in (("compress", "mine.yaml", "--run-dir", "d"), ("compare", "mine.yaml", "--run-dir", "d")):
        assert message in one_line(run(*command))
    assert message in one_line(run("importance", "d", "--recipe", "mine.yaml"))
    assert message in one_line(run("finetune", "d", "--recipe", "mine.yaml"))
    assert nothing_written()


def test_code_named_by_a_setting_is_the_users_own(run: Run) -> None:
    """Like --model: it was written by whoever runs the command."""
    result = run("compress", "mine.yaml", "--set", "model=python:absent:net", "--run-dir", "d")
    assert "cannot import 'absent'" in one_line(result)


@pytest.mark.parametrize("verb", ["compress", "compare"])
def test_a_recipe_that_is_missing(run: Run, verb: str) -> None:
    line = one_line(run(verb, "absent.yaml", "--run-dir", "d"))
    assert line == "error: recipe 'absent.yaml' cannot be read: No such file or directory"
    assert "model: is missing; give it in the recipe or as --model" in one_line(run(verb))
    assert "data: is missing; give it in the recipe or as --data" in one_line(run(verb, *MODEL))
    assert nothing_written()


@pytest.mark.parametrize("verb", ["importance", "finetune"])
def test_a_run_directory_that_knows_nothing_yet(run: Run, verb: str) -> None:
    assert "model: is missing; give it in the recipe or as --model" in one_line(run(verb, "d"))
    assert nothing_written()


def test_an_unknown_method_among_those_to_compare_ends_before_any_training(run: Run) -> None:
    line = one_line(
        run("compare", "mine.yaml", "--allow-python", "--run-dir", "d", "--method", "depth", "--method", "magic")
    )
    assert "unknown method 'magic'; choose one of layermerge, depth" in line
    assert nothing_written()


@pytest.mark.parametrize("verb", ["importance", "finetune"])
def test_methods_without_a_table_of_their_own_are_refused_by_single_stages(run: Run, verb: str) -> None:
    line = one_line(run(verb, "d", "--recipe", "mine.yaml", "--allow-python", "--method", "channels"))
    assert "'channels'" in line
    assert "layermerge, depth, layeronly" in line
    assert nothing_written()


def test_a_budget_out_of_reach_says_the_smallest(run: Run, compressed: Path) -> None:
    before = contents(compressed)
    line = one_line(run("compress", "mine.yaml", "--allow-python", "--run-dir", "a", "--budget", "5%"))
    assert "the smallest reachable latency is 2.4501 ms, 23.81% of the original; ask for at least that" in line
    after = contents(compressed)
    assert after.keys() == before.keys()
    assert only_learned(before, after)


def test_a_run_directory_of_another_network(run: Run, compressed: Path) -> None:
    before = contents(compressed)
    Path("other.py").write_text("import tiny_runs\n\ndef net():\n    return tiny_runs.network(6)\n", encoding="utf-8")
    line = one_line(run("compress", "mine.yaml", "--allow-python", "--run-dir", "a", "--model", "python:other:net"))
    assert "'a' is a run of model python:tiny_runs:network, not of python:other:net; give another run directory" in line
    (compressed / "recipe.yaml").unlink()
    before.pop("recipe.yaml")
    line = one_line(run("compress", "mine.yaml", "--allow-python", "--run-dir", "a", "--model", "python:other:net"))
    assert "'a' holds the run of another network than this TinyNet; give another run directory" in line
    assert contents(compressed) == before


def test_a_label_beyond_the_networks_outputs(run: Run) -> None:
    data = {name: value.copy() for name, value in arrays().items()}
    data["y_train"][7] = 9
    write_data(data)
    line = one_line(run("compress", "mine.yaml", "--allow-python", "--run-dir", "d"))
    assert "data.npz train has label 9, but the network has 3 outputs" in line


# -- image folders


def compress_folder(run: Run) -> Result:
    return run("compress", "mine.yaml", "--allow-python", "--run-dir", "d", *FOLDER)


def test_an_empty_class_folder(run: Run, tmp_path: Path) -> None:
    place = folder(tmp_path / "images")("class1")
    for file in place.iterdir():
        file.unlink()
    line = one_line(compress_folder(run))
    assert "class folder 'images/train/class1' has no images" in line
    assert nothing_written()


def test_a_corrupt_image_is_named(run: Run, tmp_path: Path) -> None:
    """All of them in one class, so that whichever is read first is one of these."""
    for file in folder(tmp_path / "images")("class1").iterdir():
        file.write_bytes(file.read_bytes()[:30])
    line = one_line(compress_folder(run))
    assert "image 'images/train/class1/" in line
    assert "cannot be read" in line


def test_once_data_is_repaired_the_same_command_goes_through(run: Run, tmp_path: Path) -> None:
    """Nothing of value was measured when it failed, so nothing stands in the way."""
    for file in folder(tmp_path / "images")("class1").iterdir():
        file.write_bytes(file.read_bytes()[:30])
    one_line(compress_folder(run))
    folder(tmp_path / "images")
    result = compress_folder(run)
    assert result.code == 0, result.err
    assert "60 test images" in result.out


def test_an_image_folder_end_to_end(run: Run, tmp_path: Path) -> None:
    folder(tmp_path / "images")
    result = compress_folder(run)
    assert result.code == 0, result.err
    assert "60 test images" in result.out
