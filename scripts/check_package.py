"""Checks the built wheel: all that the package needs at run time is in it, and nothing else is.

python scripts/check_package.py dist
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
NEEDED = {
    "layermerge/py.typed",
    "layermerge/data/embedded/fashion_mnist.npz",
    "layermerge/data/embedded/LICENSE",
    "layermerge/models/demo/weights.safetensors",
    "layermerge/models/demo/recipe.yaml",
    "layermerge/reporting/page/report.html",
}
"""What no import would miss before somebody uses it. Whatever else lies in the source tree is needed too."""


def in_source() -> set[str]:
    """Every file of the package in the source tree, caches aside."""
    files = (path for path in (SOURCE / "layermerge").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(SOURCE).as_posix() for path in files}


def problems(names: set[str]) -> list[str]:
    """What is wrong with a wheel that holds files of these names; nothing where it is right."""
    own = {name for name in names if ".dist-info/" not in name}
    expected = in_source() | NEEDED
    found = [f"lacks {name}" for name in sorted(expected - own)]
    found += [f"holds {name}, which is not in src/layermerge" for name in sorted(own - expected)]
    licences = [name for name in names if ".dist-info/licenses/" in name]
    return found if licences else [*found, "lacks the licence"]


def main(folder: Path) -> int:
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        print(f"'{folder}' holds {len(wheels)} wheels; build one into an empty folder", file=sys.stderr)
        return 2
    with zipfile.ZipFile(wheels[0]) as wheel:
        names = set(wheel.namelist())
    wrong = problems(names)
    for problem in wrong:
        print(f"{wheels[0].name} {problem}", file=sys.stderr)
    if not wrong:
        print(f"{wheels[0].name}: {len(names)} files, all that is needed and nothing else")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "dist")))
