"""Calibrates a network (arguments: channels, side, images) and prints as JSON by how many megabytes the process grew."""

from __future__ import annotations

import json
import resource
import sys

import torch
from torch import nn

import layermerge as lm


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(channels: int, side: int, count: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    convs = [nn.Conv2d(3, channels, 1), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*convs, nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU()).eval()
    traced = lm.trace(model, torch.randn(2, 3, side, side))
    (candidate,) = (one for one in lm.plan(traced).candidates if one.key == "1-3:5x5g1")
    net = lm.rewrite(traced, [candidate])
    images = torch.randn(count, 3, side, side)
    lm.merge(net)
    before = peak_mb()
    out = lm.calibrate(net, images, count=count)
    print(json.dumps({"grown_mb": peak_mb() - before, "forms": [fit.form for fit in out.surgery.fits]}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
