"""Sweeps published networks and writes docs/models.md: what is reached in each, and whether it is exact.

Run: python tests/sweep_models.py [--jobs 2] [--only GLOB] [--again GLOB]
A sweep that was interrupted continues where it stopped, as long as neither the sources nor the libraries have changed.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from fnmatch import fnmatchcase
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import torch
from torch import nn

import layermerge as lm
from sweep.choosing import CHOSEN, choose
from sweep.examination import examine
from sweep.networks import all_networks
from sweep.page import write_page
from sweep.results import RESULTS, Results
from sweep.runner import run

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (
    *("src/layermerge/conv.py", "src/layermerge/models", "src/layermerge/tracing", "src/layermerge/planning"),
    *("src/layermerge/surgery", "src/layermerge/runtimes", "tests/agreement.py", "tests/solutions.py"),
    *(f"tests/sweep/{name}.py" for name in ("branches", "examination", "networks", "shares")),
)
LIBRARIES = ("torch", "timm", "torchvision", "diffusers", "segmentation_models_pytorch", "ultralytics", "onnxruntime")


def made_with() -> dict[str, str]:
    """What the findings depend on."""
    sources = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")) if (ROOT / folder).is_dir() else [ROOT / folder]:
            sources.update(path.read_bytes())
    return {"sources": sources.hexdigest()[:16]} | {name: version(name) for name in LIBRARIES}


def load_libraries() -> None:
    """What every examination needs, so that each process that is forked has it."""
    for name in ("onnxruntime", "onnxscript", "torch.onnx._internal.exporter._core"):
        import_module(name)
    torch.set_num_threads(1)
    lm.plan(lm.trace(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), torch.randn(2, 3, 8, 8)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--limit", type=float, default=600, help="seconds that one network may take")
    parser.add_argument("--only", default="*", help="names of networks, as a glob")
    parser.add_argument("--keep", action="store_true", help="findings of other sources count")
    parser.add_argument(
        "--again", default="", help="networks to examine again, as a glob; 'failed' for all that failed"
    )
    parser.add_argument("--choose", action="store_true", help="choose the models of timm again, and nothing else")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.choose:
        CHOSEN.write_text("\n".join(choose()) + "\n", encoding="utf-8")
        return
    results = Results(options.results, made_with(), keep=options.keep)
    networks = [
        network
        for name, network in all_networks().items()
        if fnmatchcase(name, options.only)
        and (name not in results.findings or _again(options.again, name, results.findings[name].failure))
    ]
    load_libraries()
    begin = time.monotonic()
    for done, finding in enumerate(run(networks, examine, jobs=options.jobs, limit=options.limit), 1):
        results.add(finding)
        seconds = time.monotonic() - begin
        print(f"{done}/{len(networks)} {seconds:.0f}s {finding.name}: {finding.failure or 'works'}", flush=True)
    write_page(results)


def _again(pattern: str, name: str, failure: str | None) -> bool:
    return fnmatchcase(name, pattern) or (pattern == "failed" and failure is not None)


if __name__ == "__main__":
    main()
