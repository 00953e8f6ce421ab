"""INT8 and float16 from the command line: files alongside float32's figures, runs that are planned for INT8, refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
import yaml

import tiny_runs
from command_line import MODEL, SETTINGS, Run, document, one_line, write_data, write_recipe
from layermerge.runs.directory import VariantDirectory
from layermerge.runtimes.float16_file import holds_float16
from layermerge.runtimes.instructions import Instructions
from layermerge.runtimes.int8_file import is_quantised
from tiny_runs import accuracy_of, arrays, contents, normalised, served_logits

PLACE = Path("a/layermerge/70pct/plain")


@pytest.fixture(scope="module", autouse=True)
def _runtimes() -> Iterator[None]:
    with tiny_runs.priced_runtimes():
        yield


DONE: dict[str, Path] = {}


@pytest.fixture(autouse=True)
def compressed(run: Run, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a finished `compress`, made once and copied here."""
    write_data(arrays())
    write_recipe(tmp_path / "mine.yaml")
    if not DONE:
        assert run("compress", "mine.yaml", "--allow-python", "--run-dir", "a").code == 0
        DONE["a"] = Path(shutil.copytree("a", tmp_path_factory.mktemp("done") / "a"))
    return Path(shutil.copytree(DONE["a"], tmp_path / "a", dirs_exist_ok=True))


def accuracy(path: Path) -> float:
    """By somebody else's session, from raw pixels."""
    data = arrays()
    return accuracy_of(served_logits(path, normalised(data["x_test"])), data["y_test"])


def test_export_writes_and_scores_an_int8_file_beside_float32(run: Run, compressed: Path) -> None:
    arguments = ("export", "a", "--allow-python", "--budget", "70%", "--int8")
    facts = document(run(*arguments, "--to", "fast.int8.onnx", "--json"))
    assert is_quantised(onnx.load("fast.int8.onnx"))
    assert Path("fast.int8.onnx").read_bytes() == (PLACE / "model.int8.onnx").read_bytes()
    assert facts["exported_to"] == "fast.int8.onnx"
    assert facts["int8_score"] == accuracy(Path("fast.int8.onnx"))
    assert facts["float32_score"] == accuracy(PLACE / "model.onnx")
    result = json.loads((PLACE / "result.json").read_text(encoding="utf-8"))
    assert facts["float32_ms"] == pytest.approx(result["measured_ms"])
    assert facts["int8_ms"] == pytest.approx(result["measured_ms"] / 2)  # as this runtime prices integers
    known = VariantDirectory(PLACE).read_int8()
    assert known is not None
    assert (known.score.value, known.int8_ms) == (facts["int8_score"], facts["int8_ms"])
    before = contents(compressed)
    assert document(run(*arguments, "--json"))["int8_score"] == facts["int8_score"]
    assert contents(compressed) == before
    lines = [line.split() for line in run("compress", "mine.yaml", "--allow-python", "--run-dir", "a").out.splitlines()]
    start = lines.index(["float32", "INT8"])
    assert lines[start + 1][:5] == ["latency", f"{facts['float32_ms']:.3f}", "ms", f"{facts['int8_ms']:.3f}", "ms"]
    assert lines[start + 2][0] == "accuracy"


def test_it_says_where_int8_is_slower(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Instructions("avx2", sums_in_32_bits=False)
    monkeypatch.setattr(
        "layermerge.quantization.quantize.instructions_named", lambda name: slow if name is None else None
    )
    monkeypatch.setattr("layermerge.quantization.quantize._latencies", lambda *_: (1.0, 1.5))
    result = run("export", "a", "--allow-python", "--budget", "70%", "--int8")
    assert result.code == 0, result.err
    assert "SLOWER than float32 on this machine" in result.out
    assert "avx2, no VNNI" in result.out
    assert "SLOWER than float32 on this machine" in run("compress", "mine.yaml", "--allow-python", "--run-dir", "a").out


@pytest.mark.usefixtures("quick_clocks")
@pytest.mark.parametrize("runtime", ["onnxruntime-int8"])
def test_a_run_that_is_planned_for_int8_serves_what_it_measured(run: Run, runtime: str) -> None:
    flags = [
        f"--set={part}={yaml.safe_dump(SETTINGS[part], default_flow_style=True)}" for part in ("importance", "finetune")
    ]
    flags += ["--set", "rules.max_kernel=3", "--runtime", runtime, "--budget", "1000%", "--run-dir", "b"]
    result = run("compress", *MODEL, "--data", "npz:data.npz", "--method", "layeronly", *flags, "--json")
    assert result.code == 0, result.err
    (report,) = json.loads(result.out)
    place = VariantDirectory(Path("b/layeronly/1000pct/plain"))
    assert report["runtime"] == runtime
    assert is_quantised(onnx.load(str(place.quantised)))
    assert not is_quantised(onnx.load(str(place.exported)))
    provenance = json.loads(Path("b/latency.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert "int8" in json.dumps(provenance)
    known = place.read_int8()
    assert known is not None
    assert known.score.value == report["score"]["value"]
    assert known.int8_ms == pytest.approx(report["measured_ms"])
    document(run("export", "b", *MODEL, "--method", "layeronly", "--budget", "1000%", "--to", "own.onnx", "--json"))
    assert Path("own.onnx").read_bytes() == place.quantised.read_bytes()


@pytest.mark.usefixtures("quick_clocks")
def test_a_run_that_is_planned_for_float16_serves_it(run: Run) -> None:
    flags = [
        f"--set={part}={yaml.safe_dump(SETTINGS[part], default_flow_style=True)}" for part in ("importance", "finetune")
    ]
    flags += ["--set", "rules.max_kernel=3", "--runtime", "openvino", "--dtype", "float16", "--budget", "1000%"]
    result = run(
        "compress", *MODEL, "--data", "npz:data.npz", "--method", "layeronly", *flags, "--run-dir", "c", "--json"
    )
    assert result.code == 0, result.err
    place = VariantDirectory(Path("c/layeronly/1000pct/plain"))
    assert holds_float16(place.float16)
    provenance = json.loads(Path("c/latency.jsonl").read_text(encoding="utf-8").splitlines()[0])["provenance"]
    assert provenance["dtype"] == "float16"
    assert provenance["arithmetic"] in ("float16", "bfloat16", "float32")


def test_float16(run: Run) -> None:
    facts = document(
        run("export", "a", "--allow-python", "--budget", "70%", "--float16", "--to", "half.onnx", "--json")
    )
    assert facts["exported_to"] == "half.onnx"
    assert holds_float16(Path("half.onnx"))
    assert accuracy(Path("half.onnx")) == pytest.approx(accuracy(PLACE / "model.onnx"), abs=0.05)


def test_a_saved_network_is_quantised_on_images_that_are_named(run: Run) -> None:
    arguments = ("export", str(PLACE), *MODEL, "--int8", "--to", "own.onnx")
    assert "--int8 needs images to quantise on; give --images DIR or --data SOURCE" in one_line(run(*arguments))
    facts = document(run(*arguments, "--data", "npz:data.npz", "--json"))
    assert facts["layers"] >= 2
    assert is_quantised(onnx.load("own.onnx"))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--int8", "--float16"), "--int8 and --float16 are two forms of a file; give one of them"),
        (("--int8", "--to", "a.pt2"), "cannot write INT8 or float16 to 'a.pt2'; give a name that ends in .onnx"),
        (("--float16", "--to", "a.safetensors"), "cannot write INT8 or float16 to 'a.safetensors'"),
    ],
)
def test_refusals(run: Run, flags: tuple[str, ...], words: str) -> None:
    assert words in one_line(run("export", "a", "--allow-python", "--budget", "70%", *flags))
