"""torchvision beside a torch that its compiled operators do not fit, such as a CUDA wheel beside torch for the CPU.

Importing it then fails, and with it timm, diffusers and users' own modules, although no model needs those operators.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Any, TypeVar

import torch

from layermerge.errors import require_package

Result = TypeVar("Result")


def despite_missing_operators(call: Callable[[], Result]) -> Result:
    """What `call` returns. Where it fails for lack of torchvision's operators, they are declared and it is called again."""
    before = set(sys.modules)
    try:
        return call()
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
    _declare_operators()
    # A package whose import failed is forgotten, but not its parts; the next import would find them without their parent.
    for name in [name for name in sys.modules if name not in before]:
        if name.rpartition(".")[0] not in {"", *sys.modules}:
            del sys.modules[name]
    return call()


@lru_cache(maxsize=1)
def _declare_operators() -> Any:
    """The two schemas that torchvision looks up when imported; models and transforms need nothing else of them."""
    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def import_library(name: str) -> ModuleType:
    """timm, torchvision or diffusers; one line where it is not installed."""
    return despite_missing_operators(lambda: require_package(name, f"a {name} model", "layermerge[models]"))


def import_torchvision() -> ModuleType:
    return import_library("torchvision")
