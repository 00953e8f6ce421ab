"""Wrong calls of every verb: each one line on stderr, the right exit code, no traceback, nothing lost.

A new one is a row of WRONG: what is wrong, the arguments, a part of the line, and, where files have to be spoilt first, how.
Exit code 2 is for what the caller can mend in the call, 1 for a machine that failed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import resource
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import tiny_runs
from command_line import DENOISER, FOLDER, MODEL, Run, folder, one_line, write_data, write_recipe
from layermerge.cli.app import app
from tiny_runs import arrays, contents

Spoil = Callable[[], Any]
"""Prepares the wrong; may return a context to call in."""
NET = ("python:tiny:net", "--input", "3x8x8")
MINE = ("mine.yaml", "--allow-python", "--run-dir")
PLACE = Path("a/layermerge/70pct/plain")
ELSEWHERE = {"demo"}
"""Verbs whose wrong calls stand beside their other tests."""


@dataclass(frozen=True)
class Wrong:
    """A call, what its line says, and how files are spoilt for it."""

    what: str
    call: tuple[str, ...]
    says: str
    spoil: Spoil = lambda: None
    code: int = 2

    def __str__(self) -> str:
        return f"{self.call[0] if self.call else 'layermerge'}: {self.what}"


# -- ways to spoil what is there


def halve(path: Path | str) -> Spoil:
    """As a process leaves a file that was ended in the midst of writing it."""
    file = Path(path)
    return lambda: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]) and None


def put(path: Path | str, text: str) -> Spoil:
    return lambda: Path(path).write_text(text, encoding="utf-8") and None


def append(path: Path | str, text: str) -> Spoil:
    return lambda: Path(path).write_text(Path(path).read_text() + text) and None


def remove(path: Path | str) -> Spoil:
    return lambda: Path(path).unlink()


def all_of(*spoils: Spoil) -> Spoil:
    """The context is that of the last."""
    return lambda: [spoil() for spoil in spoils][-1]


def changed(path: Path | str, **fields: Any) -> Spoil:
    return lambda: Path(path).write_text(json.dumps(json.loads(Path(path).read_text()) | fields)) and None


@contextmanager
def full_disk(size: int = 100) -> Iterator[None]:
    """No file grows beyond so many bytes; the reason is another than a full disk's, the way it takes is the same."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def held(path: str) -> Iterator[None]:
    """As while another process measures it."""
    with Path(path).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def label_out_of_range() -> None:
    data = {name: value.copy() for name, value in arrays().items()}
    data["y_train"][7] = 9
    write_data(data)


def empty_class() -> None:
    for file in folder(Path("images"))("class1").iterdir():
        file.unlink()


def corrupt_images() -> None:
    for file in folder(Path("images"))("class1").iterdir():
        file.write_bytes(file.read_bytes()[:30])


def shorter_table(path: str) -> Spoil:
    """As an interrupted run leaves it."""
    return lambda: Path(path).write_bytes(b"".join(Path(path).read_bytes().splitlines(keepends=True)[:4])) and None


def other_weights() -> None:
    torch.save({"0.weight": torch.ones(1)}, "other.pth")


def other_module() -> None:
    put("other.py", "import tiny_runs\n\ndef net():\n    return tiny_runs.network(6)\n")()
    sys.modules.pop("other", None)


ENDS = put(
    "ends.py",
    """
import sys, warnings
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, step):
        super().__init__()
        self.conv, self.step = nn.Conv2d(3, 3, 1), step

    def forward(self, x):
        return self.conv(self.step(x))

def net():
    sys.exit(3)

def late():
    return Net(lambda x: sys.exit(0))

def stop(*_):
    raise KeyboardInterrupt

def stop_late():
    return Net(stop)

def script():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Conv2d(3, 3, 1))

def branch():
    return Net(lambda x: x if x.sum() > 0 else -x)
""",
)

# -- the calls

WRONG = [
    # the command itself
    Wrong("unknown verb", ("bake",), "No such command 'bake'; see layermerge --help"),
    Wrong("unknown option", ("--verion",), "No such option: --verion"),
    # plan
    Wrong("no model", ("plan",), "Missing argument 'MODEL'; see layermerge plan --help"),
    Wrong("unknown source", ("plan", "keras:resnet34"), "is not of the form timm:..."),
    Wrong("close spelling", ("plan", "timm:resnt34"), "timm has no model 'resnt34'; did you mean"),
    Wrong("unknown model", ("plan", "torchvision:qqqq"), "torchvision has no model 'qqqq'; it knows"),
    Wrong("module that is not there", ("plan", "python:absent:net"), "cannot import 'absent'"),
    Wrong("function that is not there", ("plan", "python:tiny:absent"), "has no callable 'absent'"),
    Wrong("function that fails", ("plan", "python:tiny:broken"), "failed: RuntimeError: no such luck"),
    Wrong("failure of many lines", ("plan", "python:wordy:net"), "failed: ValueError: one",
          put("wordy.py", "def net():\n    raise ValueError('one\\ntwo\\nthree')\n")),
    Wrong("no diffusers configuration", ("plan", "diffusers:mine.yaml"), "is not a diffusers configuration"),
    Wrong("no shape", ("plan", "python:tiny:net"), "pass its input shape, for instance --input 3x224x224"),
    Wrong("shape that is none", ("plan", "python:tiny:net", "--input", "3xx8"), "is not of the form 3x224x224"),
    Wrong("digits of another script", ("plan", "python:tiny:net", "--input", "³x32x32"), "is not of the form 3x224x224"),
    Wrong("absurd shape", ("plan", "python:tiny:net", "--input", "3x999999x999999"), "100,000,000 are the most that fit"),
    Wrong("too many sizes", ("plan", "python:tiny:net", "--input", "1x2x3x4x5"), "is not of the form 3x224x224"),
    Wrong("option that loads code", ("plan", "timm:test_resnet?checkpoint_path=evil.pth"), "could load files or code"),
    Wrong("option that is unknown", ("plan", "timm:test_resnet?clases=3"), "cannot be built: TypeError"),
    Wrong("builder that ends the process", ("plan", "python:ends:net"), "'ends:net()' failed: SystemExit: 3", ENDS),
    Wrong("forward that ends the process", ("plan", "python:ends:late", "--input", "3x8x8"), "it calls sys.exit(0)", ENDS),
    Wrong("builder that raises KeyboardInterrupt", ("plan", "python:ends:stop"), "own code raised KeyboardInterrupt", ENDS),
    Wrong("forward that raises KeyboardInterrupt", ("plan", "python:ends:stop_late", "--input", "3x8x8"),
          "own code raised KeyboardInterrupt", ENDS),
    Wrong("compiled module", ("plan", "python:ends:script", "--input", "3x8x8"), "is compiled TorchScript", ENDS),
    Wrong("control flow", ("plan", "python:ends:branch", "--input", "3x8x8"), "control flow that depends on", ENDS),
    Wrong("wrong channels", ("plan", "python:tiny:net", "--input", "4x8x8"), "to have 3 channels, but got 4"),
    Wrong("missing weights", ("plan", *NET, "--weights", "absent.pth"), "'absent.pth' does not exist"),
    Wrong("weights of another model", ("plan", *NET, "--weights", "other.pth"), "it belongs to another model",
          other_weights),
    Wrong("weights that are none", ("plan", *NET, "--weights", "mine.yaml"), "'mine.yaml' cannot be read"),
    Wrong("pin that matches nothing", ("plan", *NET, "--pin", "zzz"), "pin 'zzz' matches no layer"),
    Wrong("unknown rules", ("plan", *NET, "--rules", "mine"), "'mine' is not one of 'ours', 'paper'"),
    Wrong("bad kernel", ("plan", *NET, "--max-kernel", "-1"), "max_kernel is -1"),
    Wrong("file where a directory should be", ("plan", *NET, "--run-dir", "data.npz"), "there is a file where a"),
    Wrong("no place to write", ("plan", *NET, "--run-dir", "/proc/nothing/a"), "cannot write /proc/nothing/a/"),
    Wrong("full disk", ("plan", *NET, "--run-dir", "b"), "cannot write b/original.onnx", full_disk, code=1),
    # explain
    Wrong("nothing to explain", ("explain",), "Missing argument 'RUN_OR_MODEL'; see layermerge explain --help"),
    Wrong("no run", ("explain", "absent"), "is 'absent' a run directory?"),
    Wrong("unknown model", ("explain", "timm:resnt34"), "timm has no model 'resnt34'; did you mean"),
    Wrong("no shape", ("explain", "python:tiny:net"), "pass its input shape, for instance --input 3x224x224"),
    Wrong("unknown layer", ("explain", "a", "steem"), "no layer is called 'steem'; did you mean 'stem.0'"),
    Wrong("layer of another size", ("explain", "a", "17"), "no layer is called '17'; did you mean"),
    Wrong("part of many names", ("explain", "a", "st"), "'st' fits 3 layers: stem.0, first.0, last.0; give more of the name"),
    Wrong("empty name", ("explain", "a", ""), "'' fits 5 layers: stem.0, first.0, second.0, down.0 and 1 more"),
    Wrong("rule that does not exist", ("explain", *NET, "--set", "rules.max_kernels=3"), "rules.max_kernels"),
    Wrong("truncated plan", ("explain", "a"), "'a/plan.json' is truncated or not JSON; remove it", halve("a/plan.json")),
    Wrong("empty table", ("explain", "a"), "table 'a/latency.jsonl' is empty", put("a/latency.jsonl", "")),
    # latency
    Wrong("no run", ("latency", "absent"), "is 'absent' a run directory?"),
    Wrong("unknown runtime", ("latency", "a", "--runtime", "tflite"), "unknown runtime 'tflite'; choose one of torch"),
    Wrong("runtime that is not installed", ("latency", "a", "--runtime", "tensorrt"), "needs an NVIDIA GPU"),
    Wrong("table of another runtime", ("latency", "a", "--runtime", "onnxruntime"), "runtime: 'priced' there,"),
    Wrong("other threads", ("latency", "a", "--runtime", "priced", "--threads", "2"), "threads: 1 there, 2 now"),
    Wrong("other batch", ("latency", "a", "--runtime", "priced", "-b", "4"), "batch: 1 there, 4 now"),
    Wrong("bad batch", ("latency", "a", "--batch", "0"), "Invalid value for '--batch'"),
    Wrong("bad threads", ("latency", "a", "--threads", "many"), "Invalid value for '--threads'"),
    Wrong("truncated plan", ("latency", "a"), "'a/plan.json' is truncated or not JSON; remove it", halve("a/plan.json")),
    Wrong("newer plan", ("latency", "a"), "has format 9, this layermerge reads 2", changed("a/plan.json", schema_version=9)),
    Wrong("older plan", ("latency", "a"), "has an earlier format (1, now 2)", changed("a/plan.json", schema_version=1)),
    Wrong("plan of a format of many digits", ("latency", "a"), "'a/plan.json' is truncated or not JSON",
          put("a/plan.json", f'{{"schema_version": {"9" * 5000}}}')),
    Wrong("plan of many levels", ("latency", "a"), "'a/plan.json' is truncated or not JSON", put("a/plan.json", "[" * 9999)),
    Wrong("plan without layers", ("solve", "a"), "it lists no layers", changed("a/plan.json", layers=[])),
    Wrong("no plan at all", ("latency", "a"), "'a/plan.json' has no schema_version", put("a/plan.json", "[]")),
    Wrong("network left behind", ("latency", "a"), "original.onnx",
          all_of(remove("a/latency.jsonl"), remove("a/original.onnx"))),
    Wrong("truncated network", ("latency", "a"), "original.onnx",
          all_of(remove("a/latency.jsonl"), halve("a/original.onnx"))),
    Wrong("table that is none", ("latency", "a"), "has a line that is not valid JSON", put("a/latency.jsonl", "hello\n")),
    Wrong("table that is a directory", ("latency", "a"), "table 'a/latency.jsonl' cannot be written: Is a directory",
          all_of(remove("a/latency.jsonl"), lambda: Path("a/latency.jsonl").mkdir())),
    Wrong("locked table", ("latency", "a", "--runtime", "priced"), "is being written by another process",
          all_of(shorter_table("a/latency.jsonl"), lambda: held("a/latency.jsonl"))),
    Wrong("full disk", ("latency", "a", "--runtime", "priced"), "table 'a/latency.jsonl' cannot be written: File too",
          all_of(shorter_table("a/latency.jsonl"), full_disk), code=1),
    # importance
    Wrong("shard beyond the last", ("importance", "a", "--shard", "5/4"), "shard '5/4' is not of the form 2/4"),
    Wrong("shard in words", ("importance", "a", "--shard", "two"), "shard 'two' is not of the form 2/4"),
    Wrong("directory that knows nothing", ("importance", "d"), "model: is missing"),
    Wrong("code in a recipe", ("importance", "d", "--recipe", "mine.yaml"), "allow it with --allow-python"),
    Wrong("unknown executor", ("importance", "a", "--allow-python", "--executor", "slurm"), "'local' or 'ray'"),
    Wrong("no workers", ("importance", "a", "--workers", "0"), "Invalid value for '--workers'"),
    Wrong("method without a table", ("importance", "a", "--allow-python", "--method", "channels"), "'channels'"),
    Wrong("truncated table", ("importance", "a", "--allow-python"), "has a line that is not valid JSON",
          append("a/importance.jsonl", '{"key": "0-\n')),
    Wrong("table of other training", ("importance", "a", "--allow-python", "--set", "importance.lr=0.5"),
          "recipe.lr: 0.01 there, 0.5 now"),
    Wrong("shard of other training", ("importance", "a", "--allow-python"), "was measured otherwise",
          put("a/importance.1-of-2.jsonl", '{"schema_version": 2, "provenance": {"kind": "importance"}}\n')),
    Wrong("directory that is a file", ("importance", "data.npz", "--recipe", "mine.yaml", "--allow-python"),
          "there is a file where a directory should be"),
    Wrong("full disk", ("importance", "a", "--allow-python"), "table 'a/importance.jsonl' cannot be written: File too",
          all_of(shorter_table("a/importance.jsonl"), full_disk), code=1),
    # solve
    Wrong("budget of nothing", ("solve", "a", "--budget", "0%"), "the budget '0%' must be above zero"),
    Wrong("budget below nothing", ("solve", "a", "--budget", "-5ms"), "cannot read the budget '-5ms'"),
    Wrong("budget that is none", ("solve", "a", "--budget", "abc"), "cannot read the budget 'abc'"),
    Wrong("budget without a unit", ("solve", "a", "--budget", "60"), "cannot read the budget '60'"),
    Wrong("speed-up out of reach", ("solve", "a", "--budget", "1000x"), "the smallest reachable latency is"),
    Wrong("budget out of reach", ("solve", "a", "--budget", "5%"), "the smallest reachable latency is"),
    Wrong("bad tick", ("solve", "a", "--tick", "0"), "tick"),
    Wrong("unknown objective", ("solve", "a", "--objective", "log"), "'log' is not one of 'exp', 'delta'"),
    Wrong("missing table", ("solve", "a"), "table 'a/importance.jsonl' cannot be read", remove("a/importance.jsonl")),
    Wrong("empty table", ("solve", "a"), "table 'a/latency.jsonl' is empty", put("a/latency.jsonl", "")),
    Wrong("unfinished table", ("solve", "a"), "measure it to the end first", shorter_table("a/latency.jsonl")),
    Wrong("bad row", ("solve", "a"), "has a bad row", append("a/latency.jsonl", '{"key": "x", "value": "fast"}\n')),
    Wrong("table of another network", ("solve", "a"), "was measured for another network",
          put("a/latency.jsonl", '{"schema_version": 2, "provenance": {"network": "other"}}\n')),
    # finetune
    Wrong("setting without a value", ("finetune", "a", "--set", "finetune.lr"), "write KEY=VALUE"),
    Wrong("bad budget", ("finetune", "a", "--allow-python", "--budget", "soon"), "cannot read the budget 'soon'"),
    Wrong("code in a run directory", ("finetune", "a"), "allow it with --allow-python"),
    Wrong("truncated checkpoint", ("finetune", "a", "--allow-python"), "remove it to start again",
          halve(PLACE / "checkpoint.safetensors")),
    Wrong("other training", ("finetune", "a", "--allow-python", "--set", "finetune.lr=0.5"), "lr: 0.02 there, 0.5 now"),
    Wrong("truncated choice", ("finetune", "a", "--allow-python"), "choice.json' is truncated or not JSON; remove it",
          halve("a/layermerge/70pct/choice.json")),
    Wrong("truncated recipe", ("finetune", "a", "--allow-python"), "recipe 'a/recipe.yaml'", put("a/recipe.yaml", "model: [")),
    Wrong("device that is not there", ("finetune", "a", "--allow-python", "--set", "device=cuda"), "cuda"),
    # merge
    Wrong("no run", ("merge", "absent", *MODEL), "is 'absent' a run directory?"),
    Wrong("nothing saved", ("merge", "a", *MODEL, "--budget", "50%"), "'a' has no network of layermerge at 50%"),
    Wrong("no model", ("merge", str(PLACE)), "model: is missing"),
    Wrong("another model", ("merge", str(PLACE), "--model", "python:other:net"), "was saved from another network",
          other_module),
    Wrong("truncated solution", ("merge", str(PLACE), *MODEL), "solution.json' is truncated or not JSON",
          halve(PLACE / "solution.json")),
    Wrong("truncated weights", ("merge", str(PLACE), *MODEL), "it is truncated or not a safetensors file",
          halve(PLACE / "model.safetensors")),
    Wrong("solution of other weights", ("merge", str(PLACE), *MODEL), "does not belong to the 'solution.json' next to it",
          append(PLACE / "solution.json", " ")),
    Wrong("file where a directory should be", ("merge", str(PLACE), *MODEL, "--out", "data.npz"), "cannot write data.npz"),
    # export
    Wrong("unknown suffix", ("export", str(PLACE), *MODEL, "--to", "fast.tflite"), "ends in .onnx, .pt2, .safetensors"),
    Wrong("place below a file", ("export", str(PLACE), *MODEL, "--to", "data.npz/fast.safetensors"), "cannot write data.npz/"),
    Wrong("weights left behind", ("export", str(PLACE), *MODEL), "has no network of layermerge",
          remove(PLACE / "model.safetensors")),
    Wrong("full disk", ("export", str(PLACE), *MODEL, "--to", "fast.safetensors"), "File too large", full_disk, code=1),
    # compress
    Wrong("missing recipe", ("compress", "absent.yaml"), "recipe 'absent.yaml' cannot be read: No such file"),
    Wrong("nothing at all", ("compress",), "model: is missing; give it in the recipe or as --model"),
    Wrong("recipe that is a directory", ("compress", "a"), "recipe 'a' cannot be read: Is a directory"),
    Wrong("recipe that is not YAML", ("compress", "bad.yaml"), "recipe 'bad.yaml' is not valid YAML",
          put("bad.yaml", "a: [b\nc")),
    Wrong("recipe that is a list", ("compress", "bad.yaml"), "is not a mapping of keys to values", put("bad.yaml", "- a\n")),
    Wrong("recipe of another kind", ("compress", "data.npz"), "recipe 'data.npz'"),
    Wrong("recipe that blows up", ("compress", "bad.yaml"), "recipe 'bad.yaml' has more than 8 aliases",
          put("bad.yaml", "a: &a [x]\nb: &b [*a, *a, *a, *a, *a]\nc: [*b, *b, *b, *b, *b]\n")),
    Wrong("recipe of many levels", ("compress", "bad.yaml"), "is nested more than 20 levels", put("bad.yaml", "[" * 9999)),
    Wrong("setting of many levels", ("compress", *MINE, "d", "--set", f"rules={'[' * 999}"), "is nested more than 20 levels"),
    Wrong("unknown device", ("compress", *MINE, "d", "--set", "device=tpu"), "device: there is no device 'tpu'"),
    Wrong("absurd threads", ("compress", *MINE, "d", "--set", "threads=1000000"), "threads: Input should be less than or"),
    Wrong("absurd workers", ("compress", *MINE, "d", "--workers", "100000"), "workers: Input should be less than or equal"),
    Wrong("seed below zero", ("compress", *MINE, "d", "--set", "data.seed=-1"), "data.seed: Input should be greater than"),
    Wrong("unknown key", ("compress", *MINE, "d", "--set", "finetune.lrr=1"), "finetune.lrr: there is no such key"),
    Wrong("wrong type", ("compress", *MINE, "d", "--set", "finetune.lr=fast"), "finetune.lr: Input should be a valid number"),
    Wrong("unknown method", ("compress", *MINE, "d", "--method", "magic"), "unknown method 'magic'; choose one of"),
    Wrong("unknown runtime", ("compress", *MINE, "d", "--runtime", "tflite"), "unknown runtime 'tflite'"),
    Wrong("unknown data", ("compress", *MINE, "d", "--data", "webdataset:x"), "'webdataset:x' does not name"),
    Wrong("missing data", ("compress", *MINE, "d", "--data", "npz:absent.npz"), "'absent.npz' does not exist"),
    Wrong("torn data", ("compress", *MINE, "d"), "is truncated or not an .npz of plain arrays", halve("data.npz")),
    Wrong("label out of range", ("compress", *MINE, "d"), "label 9, but the network has 3 outputs", label_out_of_range),
    Wrong("empty class folder", ("compress", *MINE, "d", *FOLDER), "class folder 'images/train/class1' has no images",
          empty_class),
    Wrong("corrupt image", ("compress", *MINE, "d", *FOLDER), "cannot be read", corrupt_images),
    Wrong("run of another model", ("compress", *MINE, "a", "--model", "python:other:net"),
          "'a' is a run of model python:tiny_runs:network, not", other_module),
    Wrong("budget out of reach", ("compress", *MINE, "a", "--budget", "5%"), "the smallest reachable latency is"),
    Wrong("truncated result", ("compress", *MINE, "a"), "result.json' is truncated or not JSON; remove it",
          halve(PLACE / "result.json")),
    Wrong("directory that is a file", ("compress", *MINE, "data.npz"), "there is a file where a directory should be"),
    Wrong("full disk", ("compress", *MINE, "d"), "cannot write d/recipe.yaml: File too large", full_disk, code=1),
    # compare
    Wrong("unknown method", ("compare", *MINE, "d", "--method", "magic"), "unknown method 'magic'"),
    Wrong("missing recipe", ("compare", "absent.yaml"), "recipe 'absent.yaml' cannot be read"),
    Wrong("bad budget", ("compare", *MINE, "d", "--budget", "60 percent"), "cannot read the budget '60 percent'"),
    # sample
    Wrong("no place", ("sample", "python:denoising:net"), "give --out DIR, --grid FILE.png or both"),
    Wrong("no PNG", ("sample", "python:denoising:net", "--grid", "all.jpg"), "give a name that ends in .png"),
    Wrong("other images there", ("sample", "python:denoising:net", "--out", "pictures", "--count", "1"),
          "'pictures' holds other images"),
    Wrong("more steps than there are", ("sample", "python:denoising:net", "--grid", "all.png", "--steps", "2000"),
          "cannot take 2000 steps of a schedule of 1000"),
    Wrong("too much noise", ("sample", "python:denoising:net", "--grid", "all.png", "--eta", "2"), "for '--eta'"),
    Wrong("missing scheduler", ("sample", "python:denoising:net", "--grid", "all.png", "--scheduler", "absent"), "absent"),
    Wrong("too many inputs", ("sample", "python:denoising:conditional", "--grid", "all.png"), "takes 3 inputs"),
    Wrong("no images", ("sample", "python:denoising:of_vectors", "--grid", "all.png"), "does not take images first"),
    Wrong("no run", ("sample", "python:denoising:net", "--grid", "all.png", "--run", "absent"), "a run directory?"),
    Wrong("place below a file", ("sample", "python:denoising:net", "--grid", "data.npz/a.png", "--count", "1", "--steps", "1"),
          "cannot write data.npz/a.png"),
    # quality
    Wrong("no extractor", ("quality", "pictures", "pictures"), "Missing option '--extractor'"),
    Wrong("missing extractor", ("quality", "pictures", "pictures", "--extractor", "absent.pt"), "cannot be read"),
    Wrong("truncated extractor", ("quality", "pictures", "pictures", "--extractor", "seen.pt"), "is truncated or not a",
          halve("seen.pt")),
    Wrong("too few images", ("quality", "pictures", "pictures", "--extractor", "seen.pt"), "KID draws subsets of 1000"),
    Wrong("too few for FID", ("quality", "pictures", "pictures", "--extractor", "seen.pt", "--metric", "fid"),
          "FID needs 3 images or more"),
    Wrong("more than there are", ("quality", "pictures", "pictures", "--extractor", "seen.pt", "--count", "9"),
          "'pictures' has 2 images, --count asks for 9"),
    Wrong("missing images", ("quality", "absent", "pictures", "--extractor", "seen.pt"), "'absent' is not a place of images"),
    Wrong("corrupt image", ("quality", "pictures", "pictures", "--extractor", "seen.pt"), "repair or remove it",
          halve("pictures/b.png")),
    # report
    Wrong("no run", ("report", "absent"), "is 'absent' a run directory"),
    Wrong("no page", ("report", "a", "--out", "report.pdf"), "ends in .html"),
    Wrong("nothing", ("report",), "Missing argument"),
    # doctor
    Wrong("argument too many", ("doctor", "now"), "Got unexpected extra argument"),
    Wrong("unknown option", ("doctor", "--jsn"), "No such option: --jsn"),
]  # fmt: skip


# -- what they are called on


@pytest.fixture(scope="module", autouse=True)
def _runtimes() -> Iterator[None]:
    with tiny_runs.priced_runtimes():
        yield


class Colours(nn.Module):
    def forward(self, shown: torch.Tensor) -> torch.Tensor:
        return shown.mean((2, 3))


WORKSHOP: list[Path] = []
"""Where a finished run and all that calls take are, once the first call has made them."""


def make_workshop(run: Run, place: Path) -> Path:
    write_data(arrays())
    write_recipe(Path("mine.yaml"))
    Path("denoising.py").write_text(DENOISER, encoding="utf-8")
    Path("pictures").mkdir()
    for name in ("a", "b"):
        Image.fromarray(np.full((8, 8, 3), 7, np.uint8)).save(f"pictures/{name}.png")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(Colours(), torch.zeros(1, 3, 8, 8)), "seen.pt")  # type: ignore[no-untyped-call]
    done = run("compress", "mine.yaml", "--allow-python", "--run-dir", "a")
    assert done.code == 0, done.err
    return Path(shutil.copytree(".", place / "workshop"))


@pytest.fixture
def workshop(
    run: Run, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A directory of one's own to do wrong in."""
    if not WORKSHOP:
        WORKSHOP.append(make_workshop(run, tmp_path_factory.mktemp("shared")))
    shutil.copytree(WORKSHOP[0], tmp_path, dirs_exist_ok=True)
    for name in ("denoising", "wordy", "other", "ends"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_wrong_call_is_one_line_and_costs_nothing(run: Run, workshop: Path, wrong: Wrong) -> None:
    spoilt = wrong.spoil()
    before = contents(workshop)
    with spoilt or nullcontext():
        result = run(*wrong.call)
    line = one_line(result, wrong.code)
    assert wrong.says in line
    assert line.startswith("failed: " if wrong.code == 1 else "error: ")
    after = contents(workshop)
    changed = {name for name in before if after.get(name) != before[name]}
    # What was measured on the way to the answer that nothing is fast enough is kept.
    assert changed <= ({"a/latency.jsonl"} if "smallest reachable" in wrong.says else set())
    assert all(after[name].startswith(before[name]) for name in changed)
    assert not [name for name in after if "/." in name and not name.endswith("/.finetune.lock")], (
        "leftovers of a write that did not end"
    )


def test_a_disk_that_was_full_leaves_no_entry_marked_as_failed(
    run: Run, workshop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every entry would have failed alike, and none does once there is room."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/graph.onnx")

    shorter_table("a/latency.jsonl")()
    before = contents(workshop)
    with monkeypatch.context() as patch:
        patch.setattr(tiny_runs.Priced, "prepare", fail)
        line = one_line(run("latency", "a", "--runtime", "priced"), code=1)
    assert line.startswith("failed: ")
    assert "No space left on device: '/tmp/graph.onnx'" in line
    assert contents(workshop) == before
    assert run("latency", "a", "--runtime", "priced").code == 0
    assert '"failed"' not in (workshop / "a/latency.jsonl").read_text(encoding="utf-8")


def test_every_verb_is_called_wrongly() -> None:
    verbs = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    assert verbs - ELSEWHERE <= {wrong.call[0] for wrong in WRONG}
    assert len({str(wrong) for wrong in WRONG}) == len(WRONG) >= 40
