"""The run directory: what a device gets, what it gives back, and what does not belong together."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper

import layermerge as lm
import zoo
from layermerge.errors import ArtifactError, TableError
from layermerge.runs.begin import begin_run
from layermerge.runs.directory import RunDirectory
from layermerge.runs.plan_file import PlanFile
from layermerge.runs.steps import measure_latency_from_files
from layermerge.runtimes.base import Runtime
from layermerge.runtimes.registry import make_runtime
from layermerge.tables.latency import LatencyTable
from layermerge.tables.table import Table
from layermerge.tables.workload_clock import WHOLE
from layermerge.tables.workloads import workloads_of
from layermerge.tracing.fingerprint import fingerprint

pytestmark = pytest.mark.usefixtures("quick_clocks")


PLAN, ORIGINAL, LATENCY = "plan.json", "original.onnx", "latency.jsonl"


def measure_run(directory: Path, runtime: Runtime, batch: int) -> LatencyTable:
    return measure_latency_from_files(RunDirectory(directory), runtime, batch, lambda: zoo.build("functional_relu"))


def read_plan(directory: Path) -> PlanFile:
    return RunDirectory(directory).read_plan()


def read_latency(directory: Path) -> LatencyTable:
    return RunDirectory(directory).read_latency()


@cache
def _begun(name: str, method: str, with_weights: bool) -> tuple[Path, lm.Plan]:
    """Exported once, then copied."""
    made = Path(tempfile.mkdtemp(prefix="begun-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    plan = lm.plan(zoo.traced(name), method=method)
    begin_run(made / "run", zoo.traced(name), plan, with_weights=with_weights)
    return made / "run", plan


def written(
    directory: Path, name: str = "functional_relu", method: str = "layermerge", with_weights: bool = False
) -> lm.Plan:
    made, plan = _begun(name, method, with_weights)
    shutil.copytree(made, directory, dirs_exist_ok=True)
    return plan


def constants(path: Path) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return [numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer]


# -- what is written


@pytest.mark.parametrize("method", ["layermerge", "depth", "layeronly"])
@pytest.mark.parametrize("name", ["basic_strided", "time_shifted_block"])
def test_the_plan_and_its_works_come_back(name: str, method: str, tmp_path: Path) -> None:
    plan = written(tmp_path, name, method)
    read = read_plan(tmp_path)
    assert read.candidates == plan.candidates
    assert read.method == method
    assert read.workloads == workloads_of(zoo.traced(name), plan)
    assert read.layers == plan.layers
    assert read.rules == plan.rules
    assert read.fingerprint == fingerprint(zoo.traced(name).structure)


def test_excluded_layers_stay_fixed(tmp_path: Path) -> None:
    traced = zoo.traced("plain")
    begin_run(tmp_path, traced, lm.plan(traced, lm.Rules(exclude=("0",))))
    assert [entry.layers for entry in read_plan(tmp_path).candidates if entry.fixed] == [("0",)]


def test_nothing_but_the_two_files_is_left(tmp_path: Path) -> None:
    written(tmp_path / "deep" / "run")
    assert sorted(path.name for path in (tmp_path / "deep" / "run").iterdir()) == [ORIGINAL, PLAN]


@pytest.mark.parametrize("with_weights", [False, True])
def test_weights_leave_the_machine_only_when_asked(with_weights: bool, tmp_path: Path) -> None:
    written(tmp_path, with_weights=with_weights)
    stored = constants(tmp_path / ORIGINAL)
    model = zoo.build("functional_relu")
    for name, parameter in model.named_parameters():
        if parameter.dim() == 4:
            same = [
                tensor.shape == tuple(parameter.shape) and np.allclose(tensor, parameter.detach().numpy(), atol=1e-6)
                for tensor in stored
            ]
            assert any(same) == with_weights, name
    shapes = {tensor.shape for tensor in stored}
    assert {(6, 3, 3, 3), (6, 6, 3, 3), (4, 6, 3, 3)} <= shapes


def test_no_number_of_the_real_network_is_in_a_file_without_weights(tmp_path: Path) -> None:
    """Norms and linear layers as well as convs: nothing of the state, folded or not, may be told from the file."""
    written(tmp_path, "plain")
    folded = lm.merge(lm.rewrite(zoo.traced("plain"), []))
    real = {float(value) for tensor in folded.state_dict().values() for value in tensor.flatten() if value}
    kept = {float(value) for tensor in constants(tmp_path / ORIGINAL) for value in tensor.flatten()}
    assert len(real) > 1000
    assert len(real & kept) <= 0.002 * len(real)  # a few meet by chance


@pytest.mark.parametrize("name", ["norms_of_every_kind", "time_shifted_block"])
def test_random_weights_still_give_finite_numbers(name: str, tmp_path: Path) -> None:
    """Numbers that overflow or vanish take another time than those of a real network."""
    written(tmp_path, name)
    session = onnxruntime.InferenceSession(str(tmp_path / ORIGINAL), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    inputs = [tensor.numpy() for tensor in zoo.traced(name).inputs.tensors]
    (output,) = session.run(None, dict(zip(names, inputs, strict=True)))
    assert np.isfinite(output).all()


def test_a_network_with_weights_computes_what_the_model_computes(tmp_path: Path) -> None:
    written(tmp_path, "basic", with_weights=True)
    x = torch.randn(3, 3, 16, 16)
    session = onnxruntime.InferenceSession(str(tmp_path / ORIGINAL), providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        assert np.allclose(zoo.build("basic").eval()(x).numpy(), output, atol=1e-4)


def test_the_models_own_weights_are_left_as_they_were(tmp_path: Path) -> None:
    traced = zoo.traced("functional_relu")
    before = {name: tensor.clone() for name, tensor in traced.module.state_dict().items()}
    written(tmp_path)
    assert all(torch.equal(before[name], tensor) for name, tensor in traced.module.state_dict().items())


# -- what is measured


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("name", ["functional_relu", "time_shifted_block", "inputs_by_name", "squeeze_excite"])
def test_a_table_from_the_files_alone(name: str, runtime: str, tmp_path: Path) -> None:
    plan = written(tmp_path / "here", name)
    device = tmp_path / "device"
    device.mkdir()
    for file in (PLAN, ORIGINAL):
        shutil.copy(tmp_path / "here" / file, device)
    if (tmp_path / "here" / "branches").is_dir():
        with pytest.raises(ArtifactError, match=r"branches/.*\.onnx' does not exist; copy it along with 'plan.json'"):
            measure_run(device, make_runtime(runtime), 3)
        shutil.copytree(tmp_path / "here" / "branches", device / "branches")
    table = measure_run(device, make_runtime(runtime), 3)
    rows = table.table.rows.values()
    assert {row.status for row in rows} <= {"ok", "slower"}
    assert sum(not row.in_network for row in rows) == table.distinct_workloads + 1
    assert table.table.provenance["batch"] == 3
    shutil.copy(device / LATENCY, tmp_path / "here")
    back = read_latency(tmp_path / "here")
    assert back.original_ms == table.original_ms > 0
    assert [back.of(entry) for entry in plan.candidates] == [table.of(entry) for entry in table.plan.candidates]


def test_a_table_from_files_is_the_table_from_the_model(tmp_path: Path) -> None:
    """The one can be continued by the other: same keys, same provenance."""
    plan = written(tmp_path)
    table = measure_run(tmp_path, make_runtime("onnxruntime"), 1)
    traced = zoo.traced("functional_relu")
    before = (tmp_path / LATENCY).read_bytes()
    again = lm.measure_latency(plan, trace=traced, runtime="onnxruntime", path=tmp_path / LATENCY)
    assert again.table.rows == table.table.rows
    assert (tmp_path / LATENCY).read_bytes() == before


# -- what does not belong together


def test_a_table_of_another_network_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "a")
    written(tmp_path / "b", "plain")
    measure_run(tmp_path / "a", make_runtime("onnxruntime"), 1)
    shutil.copy(tmp_path / "a" / LATENCY, tmp_path / "b")
    with pytest.raises(ArtifactError, match=r"b/latency.jsonl' was measured for another network than '.*b/plan.json'"):
        read_latency(tmp_path / "b")
    with pytest.raises(TableError, match=r"network: '.*' there, '.*' now"):
        measure_run(tmp_path / "b", make_runtime("onnxruntime"), 1)


def test_missing_files_are_one_line(tmp_path: Path) -> None:
    runtime = make_runtime("onnxruntime")
    with pytest.raises(ArtifactError, match=r"plan.json' does not exist; is '.*' a run directory\?"):
        measure_run(tmp_path, runtime, 1)
    written(tmp_path)
    with pytest.raises(TableError, match=r"table '.*latency.jsonl' cannot be read: No such file"):
        read_latency(tmp_path)
    (tmp_path / ORIGINAL).unlink()
    with pytest.raises(ArtifactError, match=r"original.onnx' does not exist; copy it along with 'plan.json'"):
        measure_run(tmp_path, runtime, 1)


def test_a_plan_without_works_says_how_to_write_them(tmp_path: Path) -> None:
    lm.save(tmp_path, lm.rewrite(zoo.traced("functional_relu"), []))
    with pytest.raises(ArtifactError, match="lists no workloads; write it with: layermerge plan MODEL --run-dir"):
        measure_run(tmp_path, make_runtime("onnxruntime"), 1)


def test_saving_a_network_beside_its_plan_keeps_the_plan(tmp_path: Path) -> None:
    plan = written(tmp_path)
    lm.save(tmp_path, lm.rewrite(zoo.traced("functional_relu"), [plan["0-2:5x5g1"]]))
    assert read_plan(tmp_path).candidates == plan.candidates
    assert read_plan(tmp_path).workloads


def test_a_plan_whose_works_are_not_its_candidates_is_refused(tmp_path: Path) -> None:
    """A hand-edited or torn plan must not end in a KeyError."""
    written(tmp_path)
    document = json.loads((tmp_path / PLAN).read_text())
    document["workloads"].pop("0-1:3x3g1")
    (tmp_path / PLAN).write_text(json.dumps(document))
    with pytest.raises(lm.LayerMergeError, match="0-1:3x3g1"):
        measure_run(tmp_path, make_runtime("onnxruntime"), 1).original_ms, read_latency(tmp_path).fixed_ms


def test_a_runtime_that_cannot_read_the_network_leaves_no_table_behind(tmp_path: Path) -> None:
    """Else the next, right runtime would be refused for the sake of a table that is of no use."""
    written(tmp_path)
    with pytest.raises(lm.LayerMergeError, match="holds the run of another network than this Plain"):
        measure_latency_from_files(RunDirectory(tmp_path), make_runtime("torch"), 1, lambda: zoo.build("plain"))
    assert measure_run(tmp_path, make_runtime("onnxruntime"), 1).original_ms > 0


@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
def test_a_runtime_that_reads_no_files_is_measured_with_the_model(runtime: str, tmp_path: Path) -> None:
    plan = written(tmp_path)
    table = measure_run(tmp_path, make_runtime(runtime), 2)
    assert table.table.provenance["runtime"] == runtime
    assert all(table.of(entry) is not None for entry in plan.candidates)


def test_the_file_of_another_network_beside_the_plan_is_refused(tmp_path: Path) -> None:
    """Copied by mistake, or written by a later plan: its latency would be taken for this network's."""
    written(tmp_path / "a")
    written(tmp_path / "b", "plain")
    shutil.copy(tmp_path / "b" / ORIGINAL, tmp_path / "a" / ORIGINAL)
    with pytest.raises(ArtifactError, match=r"original.onnx' is not the network that '.*plan.json' was written with"):
        measure_run(tmp_path / "a", make_runtime("onnxruntime"), 1)
    assert not (tmp_path / "a" / LATENCY).exists()


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("1", r"plan.json' has an earlier format \(1, now 2\); it stays as it is: give another run directory"),
        ("3", r"plan.json' has format 3, this layermerge reads 2; upgrade layermerge"),
        ("1" * 5000, r"plan.json' is truncated or not JSON; remove it"),
        ('"two"', r"plan.json' has no schema_version"),
        ("true", r"plan.json' has no schema_version"),
    ],
)
def test_a_directory_of_another_format_is_refused_and_stays(version: str, message: str, tmp_path: Path) -> None:
    written(tmp_path)
    text = (tmp_path / PLAN).read_text().replace('"schema_version": 2', f'"schema_version": {version}')
    (tmp_path / PLAN).write_text(text)
    with pytest.raises(ArtifactError, match=message):
        read_plan(tmp_path)
    with pytest.raises(ArtifactError, match=message):
        begin_run(tmp_path, zoo.traced("functional_relu"), lm.plan(zoo.traced("functional_relu")))
    assert (tmp_path / PLAN).read_text() == text


def test_the_whole_network_is_the_first_row(tmp_path: Path) -> None:
    written(tmp_path)
    measure_run(tmp_path, make_runtime("onnxruntime"), 1)
    assert next(iter(Table.read(tmp_path / LATENCY).rows)) == WHOLE
