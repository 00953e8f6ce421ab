"""The repository keeps its own rules: imports go one way, files stay small, no architecture is known by name."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import io
import os
import re
import subprocess
import tokenize
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn

import layermerge

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "layermerge"
FILES = sorted(SOURCE.rglob("*.py"), key=lambda path: (path != SOURCE / "__init__.py", path))
"""The package itself first: it has no place in the order, as it imports nothing."""

# Each may import those above it and itself; CONTRIBUTING draws the same order. A module of a package may have a place of
# its own: what makes a whole run ends with a report, and reports read what runs left behind.
ORDER = (
    "errors stages",
    "arguments conv files progress",
    "tracing",
    "onnx_in pt2_in",
    "models",
    "planning data",
    "surgery tasks",
    "runtimes tuning sampling calibration",
    "tables quantization",
    "solving",
    "baselines",
    "runs",
    "reporting",
    "runs.showing",
    "runs.compress runs.compare",
    "cli",
    "__main__",
)
RANK = {name: rank for rank, line in enumerate(ORDER) for name in line.split()}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def relative(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def module(path: Path) -> str:
    return relative(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def place(name: str) -> str:
    """What a module, or a name in it, counts as in the order: itself or a package around it."""
    parts = name.split(".")
    names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((each for each in names if each in RANK), f"{name} has no place in the order")


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(text(path))


# -- where things stand, and what they import


def imported(tree: ast.AST) -> Iterator[str]:
    """What a file imports from the package, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("layermerge.") for alias in node.names if _ours(alias.name))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if _ours(node.module or ""):
                yield from (f"{node.module}.{alias.name}".removeprefix("layermerge.") for alias in node.names)


def _ours(name: str) -> bool:
    return name.split(".")[0] == "layermerge"


def test_the_root_holds_what_every_package_needs_and_nothing_else() -> None:
    at_root = {path.stem for path in FILES if path.parent == SOURCE}
    assert at_root == {"__init__", "__main__", "arguments", "conv", "errors", "files", "progress", "stages"}


def test_every_module_has_its_place_in_the_order() -> None:
    assert {place(module(path)) for path in FILES[1:]} == RANK.keys()


def test_imports_go_one_way() -> None:
    offenders = []
    for path in FILES[1:]:
        own = place(module(path))
        for name in imported(parse(path)):
            other = place(name)
            if name != "__version__" and other != own and RANK.get(other, len(ORDER)) >= RANK[own]:
                offenders.append(f"{relative(path)} imports {name}")
    assert offenders == []


def test_the_package_itself_imports_nothing_when_loaded() -> None:
    """Public names are loaded on first use; only type checkers see their imports."""
    for node in parse(SOURCE / "__init__.py").body:
        if isinstance(node, ast.ImportFrom):
            assert node.module in {"__future__", "importlib", "typing"}


def test_the_geometry_needs_no_torch() -> None:
    assert not re.search(r"^\s*(import|from) torch", text(SOURCE / "conv.py"), re.MULTILINE)


# -- sizes and names


def functions() -> Iterator[tuple[str, Function]]:
    """Every function and method of the package, with the file and the class or function that it stands in."""

    def inside(node: ast.AST, where: str) -> Iterator[tuple[str, Function]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                yield where, child
            deeper = f"{where} {child.name}" if isinstance(child, (Function, ast.ClassDef)) else where
            yield from inside(child, deeper)

    for path in FILES:
        yield from inside(parse(path), relative(path))


def test_files_have_at_most_400_lines() -> None:
    assert {relative(path): lines for path in FILES if (lines := len(text(path).splitlines())) > 400} == {}


def test_functions_have_at_most_60_lines() -> None:
    lengths = {f"{where} {each.name}": (each.end_lineno or 0) - each.lineno + 1 for where, each in functions()}
    assert {name: lines for name, lines in lengths.items() if lines > 60} == {}


def test_functions_have_at_most_7_parameters_unless_users_call_them() -> None:
    """Public functions, constructors of public classes, and verbs, whose parameters are the options of the program."""
    public = {*layermerge.__all__, *layermerge.tasks.__all__, "sample"}  # the last by docs/diffusion.md

    def called_by_users(where: str, function: Function) -> bool:
        owner = where.split()[-1] if function.name == "__init__" else function.name
        return owner in public or any("command" in ast.unparse(each) for each in function.decorator_list)

    counts = {
        f"{where} {each.name}": parameters(each) for where, each in functions() if not called_by_users(where, each)
    }
    assert {name: count for name, count in counts.items() if count > 7} == {}


def parameters(function: Function) -> int:
    given = function.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    return sum(each.arg not in ("self", "cls") for each in every)


def test_files_are_named_after_their_content() -> None:
    assert [relative(path) for path in FILES if path.stem in {"utils", "helpers", "common", "misc"}] == []


ARCHITECTURES = re.compile(
    r"resne[tx]|mobilenet|efficientnet|densenet|vgg|googlenet|inception|shufflenet|squeezenet|regnet|convnext"
    r"|ghostnet|hrnet|darknet|dla\d|ddpm|unet|bottleneck|inverted_?residual|basic_?block",
    re.IGNORECASE,
)
# A metric that bears the name of the network it was first computed with.
ALLOWED = {("sampling/quality.py", "Inception")}


def prose(tree: ast.Module) -> set[int]:
    """The first lines of strings that stand alone as a statement."""
    return {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }


def architectures(path: Path) -> Iterator[tuple[str, int]]:
    """What code knows by name and where; comments and docstrings may speak of networks, as examples."""
    if not ARCHITECTURES.search(text(path)):
        return
    said = prose(parse(path))
    for token in tokenize.generate_tokens(io.StringIO(text(path)).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.start[0] in said):
            continue
        for name in ARCHITECTURES.findall(token.string):
            yield name, token.start[0]


def test_no_architecture_is_known_by_name() -> None:
    known = [(relative(path), name, line) for path in FILES for name, line in architectures(path)]
    assert [each for each in known if each[:2] not in ALLOWED] == []
    assert {each[:2] for each in known} == ALLOWED, "an exception that nothing needs any more"


# -- what the source says about itself

DOCTESTED = [relative(path).removesuffix(".py").replace("/", ".") for path in FILES if ">>> " in text(path)]


@pytest.mark.parametrize("name", DOCTESTED)
def test_docstring_examples_run(name: str) -> None:
    names = ("trace", "plan", "rewrite", "merge")
    given = {"torch": torch, "nn": nn} | {name: getattr(layermerge, name) for name in names}
    failed, attempted = doctest.testmod(import_module(f"layermerge.{name}"), extraglobs=given)
    assert attempted > 0
    assert failed == 0


def test_logical_lines_are_statements_without_prose() -> None:
    spec = importlib.util.spec_from_file_location("count_lines", ROOT / "scripts" / "count_lines.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    failed, attempted = doctest.testmod(script)
    assert (failed, attempted) == (0, 1)
    counts = script.by_package(SOURCE)
    assert counts["conv.py"] < len(text(SOURCE / "conv.py").splitlines())
    assert counts.keys() == {path.relative_to(SOURCE).parts[0] for path in FILES}


SETTINGS = (
    "ATEN_CPU_CAPABILITY=default",
    "ATEN_CPU_CAPABILITY=avx2",
    "ONEDNN_MAX_CPU_ISA=AVX2",
    "ONEDNN_MAX_CPU_ISA=SSE41",
)


@pytest.mark.parametrize("failing", [(), SETTINGS[:1], SETTINGS[1:3]])
def test_the_suite_runs_as_other_processors_whichever_of_them_fails(tmp_path: Path, failing: tuple[str, ...]) -> None:
    """In place of the suite: a script that fails under some settings, and notes under which it was started."""
    suite = tmp_path / "suite"
    names = {setting.partition("=")[0] for setting in SETTINGS}
    suite.write_text(
        f"#!/bin/sh\nset=$(env | grep -E '^({'|'.join(names)})=')\necho $set >> {tmp_path}/ran\n"
        f"case $set in none{''.join('|' + setting for setting in failing)}) exit 1;; esac\n"
    )
    suite.chmod(0o755)
    env = {name: value for name, value in os.environ.items() if name not in names and not name.startswith("MAKE")}
    call = ["make", "--old-file=install", f"TEST={suite}", "test-processors"]
    done = subprocess.run(call, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert (tmp_path / "ran").read_text().split() == list(SETTINGS)
    assert (done.returncode != 0) is bool(failing)
    assert (f"failed under: {' '.join(failing)}\n" in done.stderr) is bool(failing)


def test_the_version_stands_in_one_place() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'version = { attr = "layermerge.__version__" }' in project
    assert not re.search(r'^version = "', project, re.MULTILINE)
    literal = f'"{layermerge.__version__}"'
    assert [relative(path) for path in FILES if literal in text(path)] == ["__init__.py"]


def test_public_names_exist_and_unknown_ones_do_not() -> None:
    for name in layermerge.__all__:
        assert getattr(layermerge, name) is not None
    assert set(layermerge.__all__) <= set(dir(layermerge))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        layermerge.__getattr__("nothing")
