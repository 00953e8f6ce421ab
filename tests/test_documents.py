"""What the documents show works: examples run, links lead somewhere. `test_docs_blocks.py` runs what stands in them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import layermerge.cli  # noqa: F401, so that every verb is known
from layermerge.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINKS = [
    (document, link)
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", document.read_text(encoding="utf-8"))
]


def test_readme_has_its_commands_and_they_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test", "docs"):
        assert f"\nmake {target} " in README
        assert f"\n{target}: install" in makefile


def test_readme_shows_a_small_picture_of_a_report_and_how_to_cite() -> None:
    (picture,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    content = (ROOT / picture).read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) < 300_000
    assert "@inproceedings{kim2024layermerge," in README


def test_readme_commands_are_verbs_of_the_program() -> None:
    verbs = set(re.findall(r"^layermerge (\w+)", README, flags=re.MULTILINE))
    assert verbs
    for verb in verbs:
        assert "Example" in CliRunner().invoke(app, [verb, "--help"], catch_exceptions=False).output


def test_example_merges_and_exports(tmp_path: Path, example: Callable[..., str]) -> None:
    out = tmp_path / "merged.onnx"
    printed = example("merge_exactly.py", "timm:test_resnet", "--input", "3x32x32", "--out", str(out))
    assert "15 convs, 1 residual blocks" in printed
    assert "merged: 14 convs" in printed
    assert out.is_file()


def test_example_trains_with_its_own_loop(example: Callable[..., str]) -> None:
    printed = example("own_training_loop.py", "--epochs", "1").splitlines()
    assert printed[0].startswith("original: 4 convs, accuracy 0.")
    assert printed[1].startswith("rewritten, before training: accuracy 0.")
    assert printed[2].startswith("merged after training: 3 convs, accuracy 0.")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "arguments", "printed"),
    [
        # The stem, five blocks of one, and three strided ones that keep their three.
        ("merge_exactly.py", ["timm:resnet18", "--input", "3x64x64", "--out", "merged.onnx"], "merged: 15 convs"),
        ("own_training_loop.py", ["--epochs", "1"], "merged after training: 3 convs, accuracy 0."),
        ("sample_with_a_pipeline.py", [], "8 blocks merged, 4 pictures in samples.png\n"),
    ],
)
def test_examples_need_nothing_but_themselves(tmp_path: Path, script: str, arguments: list[str], printed: str) -> None:
    """In a process in which no test has imported anything."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / script), *arguments],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout


@pytest.mark.parametrize(("document", "link"), LINKS)
def test_links_lead_somewhere(document: Path, link: str) -> None:
    assert (document.parent / link).exists()
