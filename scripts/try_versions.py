"""Tries the oldest and the newest versions that pyproject.toml allows: a fresh environment for each, and a part of the tests.

    python scripts/try_versions.py [oldest] [newest] [--keep DIR]

Needs several GB where the package index offers only CUDA builds of torch. The ranges are read from pyproject.toml, so they
stand in one place; docs/versions.md says what came of it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("models", "export", "baselines", "plots", "quality")
"""Whose ranges are tried. Ray, NNCF and TensorBoard are asked for by name where they are used."""
TOOLS = ("pytest>=9", "hypothesis>=6.150", "scikit-learn", "scikit-image", "ruamel.yaml")
PART = (
    "tests/pt2_in",
    "tests/models",
    "tests/tracing/test_lift.py",
    "tests/tracing/test_input_checks.py",
    "tests/surgery/test_merge.py",
    "tests/surgery/test_drop_in.py",
    "tests/onnx_in/test_operators.py",
    "tests/runtimes/test_runtimes.py",
    "tests/quantization/test_quantize.py",
    "tests/baselines/test_channel_pruning.py",
    "tests/solving/test_solve.py",
    "tests/tuning/test_trainer.py",
    "tests/runs/test_alone.py",
    "tests/runs/test_untrained.py",
    "tests/cli/test_cli.py",
)
"""The way of a network through every library with a range: captured, merged, trained, exported, served, saved, loaded."""
IGNORED = ("CUDA is not available", "User provided device_type", "`torch.jit", "`isinstance")
"""Warnings of other versions: of CUDA builds on machines without a GPU, and of what torch means to give up."""


@dataclass(frozen=True)
class Range:
    """A requirement of pyproject.toml: `torch>=2.12,<3` is torch from 2.12 on."""

    name: str
    text: str

    @property
    def lowest(self) -> str | None:
        found = re.search(r">=\s*([0-9][0-9.]*)", self.text)
        return found[1] if found else None

    @property
    def oldest(self) -> str:
        return f"{self.name}=={self.lowest}" if self.lowest else self.name


def ranges(extras: tuple[str, ...] = EXTRAS) -> list[Range]:
    """All requirements of the package and of its extras, in the order of pyproject.toml, each once."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [*project["dependencies"], *(each for extra in extras for each in project["optional-dependencies"][extra])]
    found = {re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0]: text for text in listed}
    return [Range(name, text) for name, text in found.items() if name != "layermerge"]


def install(place: Path, which: str) -> Path:
    """A fresh environment with these versions; its python. torch first: asked for in one go, others would choose its build."""
    known = ranges()
    wanted = [each.oldest if which == "oldest" else each.text for each in known]
    python = place / "bin" / "python"
    if not python.exists():  # one that was kept is brought up to what is wanted
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--upgrade", "--disable-pip-version-check"]
    subprocess.run([*pip, *(each for each in wanted if re.match(r"torch(vision)?[=>]", each))], check=True)
    subprocess.run([*pip, *wanted, *TOOLS], check=True)
    subprocess.run([*pip, "--no-deps", "--editable", str(ROOT)], check=True)
    return python


def versions(python: Path) -> dict[str, str]:
    names = [each.name for each in ranges()]
    code = f"from importlib.metadata import version\nfor name in {names!r}: print(name, version(name))"
    told = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout
    return dict(line.split() for line in told.splitlines())


def attempt(place: Path, which: str) -> bool:
    """Whether the part of the tests passes."""
    python = install(place, which)
    print(f"== {which}: " + ", ".join(f"{name} {version}" for name, version in versions(python).items()), flush=True)
    ignored = [flag for message in IGNORED for flag in ("-W", f"ignore:{message}")]
    setting = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(
        [str(python), "-m", "pytest", "-p", "no:cacheprovider", *ignored, *PART], cwd=ROOT, env=setting
    )
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("which", nargs="*", choices=["oldest", "newest", []], default=[], help="both by default")
    parser.add_argument("--keep", type=Path, help="where environments go, and stay")
    given = parser.parse_args()
    failed = []
    for which in given.which or ["oldest", "newest"]:
        with tempfile.TemporaryDirectory() as folder:
            if not attempt((given.keep or Path(folder)) / which, which):
                failed.append(which)
    if failed:
        print(f"failed with the {' and '.join(failed)} versions", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
