"""The package: what the wheel holds, which versions it asks for, and that it works where nothing else is."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import layermerge

ROOT = Path(__file__).resolve().parents[1]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


# -- what the wheel holds

LICENCE = "layermerge-1.dist-info/licenses/LICENSE"


def test_a_wheel_of_all_files_is_right() -> None:
    checking = script("check_package")
    assert checking.problems({*checking.in_source(), LICENCE}) == []


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (lambda source: {*source, LICENCE} - {"layermerge/py.typed"}, "lacks layermerge/py.typed"),
        (
            lambda source: {*source, LICENCE} - {"layermerge/models/demo/weights.safetensors"},
            "lacks layermerge/models/demo/weights.safetensors",
        ),
        (lambda source: {*source, LICENCE, "tests/test_a.py"}, "holds tests/test_a.py, which is not in src/layermerge"),
        (lambda source: {*source, LICENCE, "benchmarks/a.py"}, "holds benchmarks/a.py, which is not in src/layermerge"),
        (lambda source: source, "lacks the licence"),
    ],
)
def test_what_is_wrong_with_a_wheel_is_named(names: object, message: str) -> None:
    checking = script("check_package")
    assert callable(names)
    assert checking.problems(names(checking.in_source())) == [message]


def test_a_folder_without_a_wheel_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script("check_package").main(tmp_path) == 2
    assert "holds 0 wheels" in capsys.readouterr().err


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build", reason="build is not installed")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        check=True,
        capture_output=True,
    )
    return folder


@pytest.mark.slow
def test_the_built_wheel_runs_where_nothing_else_is(built: Path, tmp_path: Path) -> None:
    """A fresh environment, torch first as `make install` has it; run from a folder that holds no source."""
    assert script("check_package").main(built) == 0
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def call(*words: str) -> str:
        done = subprocess.run(words, cwd=tmp_path, env=bare, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    call(sys.executable, "-m", "venv", "venv")
    programs = tmp_path / "venv" / "bin"
    pip = (str(programs / "pip"), "install", "--quiet", "-c", str(ROOT / "constraints.txt"))
    torch = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    call(*pip, torch)
    call(*pip, *map(str, built.glob("*.whl")))
    program = str(programs / "layermerge")
    assert layermerge.__version__ in call(program, "--version")
    assert "torch" in call(program, "doctor")  # what is optional is not there, which is no failure
    call(program, "plan", "demo:clothes", "--json")


# -- the versions it asks for


def test_every_range_has_a_lowest_version_and_stands_in_the_documents() -> None:
    page = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    trying = script("try_versions")
    for each in trying.ranges():
        assert each.lowest is not None, f"{each.name} has no lowest version"
        row = re.search(rf"^\| {re.escape(each.name)} \| ([^|]+) \|", page, re.MULTILINE)
        assert row is not None, f"docs/versions.md does not name {each.name}"
        assert row[1].strip() == each.text.removeprefix(each.name).replace(",", ", ")


def test_the_pinned_versions_are_within_the_ranges() -> None:
    from packaging.requirements import Requirement

    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    for each in script("try_versions").ranges():
        assert Requirement(each.text).specifier.contains(pinned[each.name])


def test_the_tests_that_are_tried_exist() -> None:
    assert [path for path in script("try_versions").PART if not (ROOT / path).exists()] == []
