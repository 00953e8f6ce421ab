"""What is freed stays with the process for a while, and goes back to the system afterwards."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

from layermerge.tuning import memory
from layermerge.tuning.memory import memory_kept

IN_A_PROCESS_OF_ITS_OWN = """
from pathlib import Path

import torch

from layermerge.tuning.memory import memory_kept

MAPS = 64 * 2**20  # floats: 256 MB, which glibc maps and unmaps each time


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // 2**20


before = resident()
with memory_kept():
    with memory_kept():
        torch.ones(MAPS)
    print("freed", resident() - before)
    torch.ones(MAPS - 4096)
    print("again", resident() - before)
print("end", resident() - before)
torch.ones(2 * MAPS)  # larger than anything that was kept, which may be used again wherever it lies below what is in use
print("larger", resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_freed_memory_is_kept_inside_and_given_back_at_the_end() -> None:
    """What other tests have left in a heap would be counted, too."""
    if memory._glibc() is None:
        pytest.skip("the C library is not glibc")
    told = subprocess.run([sys.executable, "-c", IN_A_PROCESS_OF_ITS_OWN], check=True, capture_output=True, text=True)
    megabytes = {moment: int(count) for moment, count in map(str.split, told.stdout.splitlines())}
    assert megabytes["freed"] > 200, "still inside the outer one"
    assert megabytes["again"] < 400, "used again, not taken anew"
    assert megabytes["end"] < 100
    assert megabytes["larger"] < 100, "large blocks are given back at once, as usual"


def test_other_threads_get_blocks_of_any_size() -> None:
    """Their part of glibc's heap ends at 64 MB."""
    sums: list[float] = []
    with memory_kept():
        thread = threading.Thread(target=lambda: sums.append(torch.ones(32 * 2**20).sum().item()))
        thread.start()
        thread.join()
    assert sums == [32 * 2**20]


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_glibc", lambda: None)
    with memory_kept():
        assert torch.ones(3).sum() == 3
