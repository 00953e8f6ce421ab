"""The command line in a process of its own, with runtimes that price networks instead of timing them."""

from __future__ import annotations

import torch

import tiny_runs
from layermerge import cli

if __name__ == "__main__":
    torch.set_num_threads(1)
    with tiny_runs.priced_runtimes():
        cli.main()
