"""Merge every residual block of a network into one convolution, exactly, and write it as ONNX.

Shows the surgery alone: no tables, no fine-tuning, random weights, so accuracy is not the point here; exactness is.
Run: python examples/merge_exactly.py [MODEL] [--input 3x224x224] [--out model.onnx]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import layermerge as lm
from layermerge.models import load_model, parse_shape


def convs(module: nn.Module) -> int:
    return sum(isinstance(part, nn.Conv2d) for part in module.modules())


def best_ms(modules: dict[str, nn.Module], x: Tensor, rounds: int = 15) -> dict[str, float]:
    """The fastest of interleaved passes, so that a busy machine slows all alike."""
    best = dict.fromkeys(modules, float("inf"))
    for _ in range(rounds):
        for name, module in modules.items():
            start = time.perf_counter()
            module(x)
            best[name] = min(best[name], (time.perf_counter() - start) * 1e3)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="timm:mobilenetv2_100")
    parser.add_argument("--input", default="3x224x224")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)

    loaded = load_model(options.model, input_shape=parse_shape(options.input))
    model = loaded.module.eval()
    trace = lm.trace(model, loaded.example_inputs)
    menu = lm.plan(trace)
    # The Plan is the menu; a solution is an order from it: here each residual block as one conv with all of it kept.
    spans = {(block.start, block.end) for block in trace.blocks}
    order = [c for c in menu.candidates if (c.start, c.end) in spans and c.kept == c.layers]
    net = lm.rewrite(trace, order).eval()  # trains like any module
    fast = lm.merge(net)  # fewer convs, the same function, checked immediately

    with torch.no_grad():
        x = loaded.example_inputs[:1]
        difference = (net(x) - fast(x)).abs().max() / net(x).abs().max()
        took = best_ms({"original": model, "merged": fast}, x)
    print(
        f"{options.model}: {convs(model)} convs, {len(trace.blocks)} residual blocks, {len(menu.candidates)} candidates"
    )
    print(f"merged: {convs(fast)} convs, relative difference to the unmerged network {difference:.1e}")
    print(
        f"one image, one thread: {took['original']:.1f} ms -> {took['merged']:.1f} ms, before any table or fine-tuning"
    )
    if options.out:
        print(f"written: {lm.export(fast, options.out, loaded.example_inputs)}")


if __name__ == "__main__":
    main()
