"""What the documents show works: examples run, links lead somewhere. `test_docs_blocks.py` runs what stands in them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINKS = [
    (document, link)
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", document.read_text(encoding="utf-8"))
]


def _run(*arguments: str, cwd: Path) -> str:
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=one_thread, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_readme_has_its_two_commands_and_they_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert f"\nmake {target} " in README
        assert f"\n{target}: install" in makefile


def test_readme_commands_are_verbs_of_the_program() -> None:
    verbs = set(re.findall(r"^layermerge (\w+)", README, flags=re.MULTILINE))
    assert verbs
    for verb in verbs:
        assert "Example" in _run("-m", "layermerge", verb, "--help", cwd=ROOT)


def test_example_merges_and_exports(tmp_path: Path) -> None:
    out = tmp_path / "merged.onnx"
    script = str(ROOT / "examples" / "merge_exactly.py")
    printed = _run(script, "timm:resnet18", "--input", "3x64x64", "--out", str(out), cwd=tmp_path)
    assert "20 convs, 8 residual blocks" in printed
    assert "merged: 15 convs" in printed  # the stem, five blocks of one, and three strided ones that keep their three
    assert out.is_file()


def test_example_trains_with_its_own_loop(tmp_path: Path) -> None:
    printed = _run(str(ROOT / "examples" / "own_training_loop.py"), "--epochs", "1", cwd=tmp_path).splitlines()
    assert printed[0].startswith("original: 4 convs, accuracy 0.")
    assert printed[1].startswith("rewritten, before training: accuracy 0.")
    assert printed[2].startswith("merged after training: 3 convs, accuracy 0.")


@pytest.mark.parametrize(("document", "link"), LINKS)
def test_links_lead_somewhere(document: Path, link: str) -> None:
    assert (document.parent / link).exists()
