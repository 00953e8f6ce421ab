"""Fine-tuning from the command line in two processes: the first one measures and writes, both end with one network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tiny_runs import arrays

HERE = Path(__file__).resolve().parents[1]


def _run(folder: Path, *command: str) -> str:
    paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_two_processes_choose_once_and_compress_finishes_what_they_trained(tmp_path: Path) -> None:
    data: dict[str, Any] = dict(arrays())
    np.savez(tmp_path / "data.npz", **data)
    recipe = {
        "model": "python:tiny_runs:network",
        "data": "npz:data.npz",
        "method": "layeronly",
        "budgets": ["1000%"],
        "importance": {"steps": 1, "batch_size": 16, "lr": 0.01},
        "finetune": {"steps": 4, "batch_size": 16, "lr": 0.02},
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    torchrun = ("-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29617")
    verb = ("-m", "layermerge", "finetune", "a", "--recipe", "mine.yaml", "--allow-python", "--json")
    printed = json.loads(_run(tmp_path, *torchrun, *verb))
    assert list(printed) == ["1000%"]  # one document, not one a process
    trained = tmp_path / "a/layeronly/1000%".replace("%", "pct") / "plain"
    checkpoint = (trained / "checkpoint.safetensors").read_bytes()
    report = json.loads(
        _run(tmp_path, "-m", "layermerge", "compress", "mine.yaml", "--allow-python", "--run-dir", "a", "--json")
    )[0]
    assert (trained / "checkpoint.safetensors").read_bytes() == checkpoint  # nothing was trained again
    assert report["held_out"] == printed["1000%"]["score"]
