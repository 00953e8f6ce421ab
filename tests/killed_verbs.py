"""Runs the command line in child processes that are ended at random moments, by SIGKILL, SIGTERM or Ctrl-C.

Children are forked, so that torch is imported once; each goes on with `compress` where the one before was ended. A run that
is finished is compared with an undisturbed one, and the next begins. Prints how many children were ended at work.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import tiny_runs
from command_line import write_data, write_recipe
from layermerge import cli

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
LONGEST = 12.0
"""Seconds that a child is left alone at most: a whole run takes less."""


def fork(directory: str, log: Path) -> int:
    child = os.fork()
    if child:
        return child
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    sys.argv = ["layermerge", "compress", "mine.yaml", "--allow-python", "--run-dir", directory]
    code = 1
    try:
        cli.main()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def end_at_random(directory: str, log: Path, moments: random.Random) -> str | None:
    """Ends a run at a random moment and checks how it ended; None where it was done before."""
    child, kind, until = fork(directory, log), moments.choice(SIGNALS), time.monotonic() + moments.uniform(0, LONGEST)
    while time.monotonic() < until:
        if (ended := os.waitpid(child, os.WNOHANG)) != (0, 0):
            assert os.waitstatus_to_exitcode(ended[1]) == 0, log.read_text()
            return None
        time.sleep(0.002)
    os.kill(child, kind)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    said = log.read_text(errors="replace")
    assert "Traceback" not in said, said
    if kind == signal.SIGINT:
        if code == 0:  # it had come to its end
            assert "interrupted" not in said
            return None
        assert code == 1, (code, said)
        assert "interrupted; what was done is kept. To go on: layermerge compress" in said
    else:
        assert code == -kind, (code, said)
    return kind.name


def lasting(directory: Path) -> dict[str, Any]:
    """All that does not depend on how long something took: rows, choices, weights, results."""
    kept: dict[str, Any] = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        assert not path.name.startswith(".") or path.name == ".finetune.lock", f"{name} was left behind"
        if path.suffix in (".safetensors", ".onnx", ".yaml") and path.name != "checkpoint.safetensors":
            kept[name] = path.read_bytes()
        elif path.suffix == ".jsonl":
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            taken = ("seconds", "samples", "spread")
            kept[name] = [{key: value for key, value in row.items() if key not in taken} for row in rows]
        elif path.suffix == ".json":
            document = json.loads(path.read_text())
            document.pop("cost", None)
            kept[name] = document
        else:
            kept[name] = path.is_file()
    return kept


def require_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    for name in expected:
        # An exporter may name things otherwise each time; what it wrote was compared with the network by itself.
        if not name.endswith(".onnx") and name != "plan.json":
            assert found[name] == expected[name], name


def main() -> None:
    place, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    os.chdir(place)
    sys.path.insert(0, str(Path(__file__).parent))
    write_data(tiny_runs.arrays())
    write_recipe(place / "mine.yaml")
    moments, log, ends = random.Random(seed), place / "log.txt", Counter[str]()
    with tiny_runs.priced_runtimes():
        assert os.waitpid(fork("undisturbed", log), 0)[1] == 0, log.read_text()
        expected = lasting(place / "undisturbed")
        number = 1
        while ends.total() < count:
            if (ended := end_at_random(f"run{number}", log, moments)) is not None:
                ends[ended] += 1
                continue
            require_same(lasting(place / f"run{number}"), expected)
            number += 1
        assert os.waitpid(fork(f"run{number}", log), 0)[1] == 0, log.read_text()
        require_same(lasting(place / f"run{number}"), expected)
    print(json.dumps(ends))


if __name__ == "__main__":
    main()
