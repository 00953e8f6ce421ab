"""The repository keeps its own rules: imports go one way, files stay small, no architecture is known by name."""

from __future__ import annotations

import ast
import doctest
import io
import re
import tokenize
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn

import layermerge

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "layermerge"
FILES = sorted(SOURCE.rglob("*.py"))

# Each stage may import those above it and its own line; a new top-level module must be given its place here.
ORDER = (
    {"errors", "progress", "demo"},
    {"conv", "models"},
    {"tracing"},
    {"planning"},
    {"surgery"},
    {"artifacts", "drop_in"},
    {"saving", "exporting", "tasks"},
    {"tuning", "sampling"},
    {"runtimes"},
    {"tables"},
    {"solving"},
    {"run_dir", "baselines", "recipes"},
    {"results"},
    {"stages"},
    {"methods"},
    {"reporting"},
    {"pipeline"},
    {"cli"},
    {"__main__"},
)
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}


def relative(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def stage(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> Iterator[str]:
    """The stages of ours that a file imports, anywhere in it; "" stands for the package itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "layermerge":
                    yield (*alias.name.split("."), "")[1]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            parts = (node.module or "").split(".")
            if parts[0] == "layermerge" and len(parts) > 1:
                yield parts[1]
            elif parts[0] == "layermerge":
                yield from ("" if alias.name == "__version__" else alias.name for alias in node.names)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_every_module_has_its_place_in_the_order() -> None:
    assert {stage(path) for path in FILES} - {"__init__"} <= RANK.keys()


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_imports_go_one_way(path: Path) -> None:
    if stage(path) == "__init__":
        return
    for name in imported(parse(path)):
        assert name == "" or name in RANK, f"{relative(path)} imports {name}, which has no place in the order"
        assert name == "" or RANK[name] <= RANK[stage(path)], f"{relative(path)} imports the later stage {name}"


def test_the_package_itself_imports_nothing_when_loaded() -> None:
    """Public names are loaded on first use; only type checkers see their imports."""
    for node in parse(SOURCE / "__init__.py").body:
        if isinstance(node, ast.ImportFrom):
            assert node.module in {"__future__", "importlib", "typing"}


def test_the_geometry_needs_no_torch() -> None:
    text = (SOURCE / "conv.py").read_text(encoding="utf-8")
    assert not re.search(r"^\s*(import|from) torch", text, re.MULTILINE)


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_files_stay_below_400_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 400


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_functions_stay_at_most_60_lines_long(path: Path) -> None:
    for node in ast.walk(parse(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert (node.end_lineno or 0) - node.lineno < 60, node.name


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_files_are_named_after_their_content(path: Path) -> None:
    assert path.stem not in {"utils", "helpers", "common", "misc"}


ARCHITECTURES = re.compile(
    r"resne[tx]|mobilenet|efficientnet|densenet|vgg|googlenet|inception|shufflenet|squeezenet|regnet|convnext"
    r"|ghostnet|hrnet|darknet|dla\d|ddpm|unet|bottleneck|inverted_?residual|basic_?block",
    re.IGNORECASE,
)
# The folder that a saved diffusion pipeline keeps its denoising network in.
# A metric that bears the name of the network it was first computed with.
ALLOWED = {("models.py", "unet"), ("sampling/quality.py", "Inception")}


def docstrings(tree: ast.Module) -> set[int]:
    """The first lines of strings that stand alone as a statement."""
    return {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_no_architecture_is_known_by_name(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    prose = docstrings(parse(path))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.start[0] in prose):
            continue
        for found in ARCHITECTURES.findall(token.string):
            assert (relative(path), found) in ALLOWED, f"{relative(path)}:{token.start[0]} knows {found}"


@pytest.mark.parametrize(
    "name",
    [
        "conv",
        "tracing.trace",
        "planning.plan",
        "surgery.kernels",
        "surgery.rewrite",
        "surgery.merge",
        "sampling.ddim",
        "progress",
    ],
)
def test_docstring_examples_run(name: str) -> None:
    module = import_module(f"layermerge.{name}")
    names = ("trace", "plan", "rewrite", "merge")
    given = {"torch": torch, "nn": nn} | {name: getattr(layermerge, name) for name in names}
    failed, attempted = doctest.testmod(module, extraglobs=given)
    assert attempted > 0
    assert failed == 0


def test_the_version_stands_in_one_place() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'version = { attr = "layermerge.__version__" }' in project
    assert not re.search(r'^version = "', project, re.MULTILINE)
    literal = f'"{layermerge.__version__}"'
    assert [relative(path) for path in FILES if literal in path.read_text(encoding="utf-8")] == ["__init__.py"]


def test_public_names_exist_and_unknown_ones_do_not() -> None:
    for name in layermerge.__all__:
        assert getattr(layermerge, name) is not None
    assert set(layermerge.__all__) <= set(dir(layermerge))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        layermerge.__getattr__("nothing")
