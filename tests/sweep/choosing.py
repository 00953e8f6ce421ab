"""Which models of timm the sweep takes: the smallest of every family that computes with convolutions.

A family is what one source file of timm names alike, up to the first digit or underscore. It is of convolutions if its
smallest member has more than `FEW_CONVS` of them; transformers and mixers have one, which cuts the image into patches, or
one a stage. Every model has to be built for that, without memory for its weights: four minutes, so the choice is kept
in a file and made again for another timm by `python tests/sweep_models.py --choose`.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import nn

from layermerge.models.torchvision_operators import import_library

CHOSEN = Path(__file__).with_name("timm_families.txt")
FEW_CONVS = 5


def choose() -> list[str]:
    """The names, in the order of timm's files."""
    timm = import_library("timm")
    smallest: dict[tuple[str, str], tuple[int, str]] = {}
    convs: dict[str, int] = {}
    for file in timm.list_modules():
        for name in timm.list_models(module=file):
            family = re.match(r"(?:(?:tf|test|gc|legacy)_)?[a-z]+", name)
            assert family is not None
            with torch.device("meta"):
                model = timm.create_model(name)
            convs[name] = sum(isinstance(module, nn.Conv2d) for module in model.modules())
            size = sum(parameter.numel() for parameter in model.parameters())
            known = smallest.get((file, family[0]))
            if known is None or (size, name) < known:
                smallest[file, family[0]] = size, name
    return [name for _, name in smallest.values() if convs[name] > FEW_CONVS]


def chosen() -> list[str]:
    return CHOSEN.read_text(encoding="utf-8").split()
