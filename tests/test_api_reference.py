"""The API reference is made from docstrings: it is up to date, and every public name has one."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType

import pytest

import layermerge

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "api.md"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_api_reference", ROOT / "scripts" / "make_api_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(maker: ModuleType) -> None:
    wanted = maker.reference()
    assert PAGE.read_text(encoding="utf-8") == wanted, f"docs/api.md is out of date; run: {maker.COMMAND}"


def test_the_page_says_something_about_every_public_name() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in set(layermerge.__all__) - {"__version__", "tasks"}:
        assert f"\n### {name}\n" in page
    for name in layermerge.tasks.__all__:
        thing = getattr(layermerge.tasks, name)
        where = f"\n### {name}\n" if inspect.isclass(thing) or inspect.isfunction(thing) else f"\n| `{name}` |"
        assert where in page


@pytest.mark.parametrize("name", sorted(set(layermerge.__all__) - {"__version__"}))
def test_public_names_have_docstrings(name: str) -> None:
    thing = getattr(layermerge, name)
    text = inspect.cleandoc(thing.__doc__ or "")
    assert len(text.split()) > 5, f"{name} has no docstring that would help anybody"
    assert not text.startswith(f"{name}("), f"{name} has the docstring that dataclasses make"
