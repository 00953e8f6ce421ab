"""What is freed stays with the process for a while, and goes back to the system afterwards."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
import torch

from layermerge.tuning import memory
from layermerge.tuning.memory import memory_kept

MAPS = 64 * 2**20
"""Floats: 256 MB, which glibc maps and unmaps each time."""


def resident() -> int:
    """Bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_freed_memory_is_kept_inside_and_given_back_at_the_end() -> None:
    if memory._glibc() is None:
        pytest.skip("the C library is not glibc")
    before = resident()
    with memory_kept():
        with memory_kept():
            torch.ones(MAPS)
        assert resident() - before > 200 * 2**20  # still inside the outer one
        torch.ones(MAPS - 4096)
        assert resident() - before < 400 * 2**20  # used again, not taken anew
    assert resident() - before < 100 * 2**20
    torch.ones(MAPS)
    assert resident() - before < 100 * 2**20  # and large blocks are given back at once, as usual


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
