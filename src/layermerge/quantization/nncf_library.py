"""NNCF, OpenVINO's own quantiser, in place of onnxruntime's: an extra, for files that OpenVINO serves."""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Collection, Sequence
from typing import Any

from layermerge.errors import require_package
from layermerge.quantization.examples import Feed
from layermerge.runtimes.instructions import Instructions
from layermerge.runtimes.int8_file import Model, quieted


def nncf_library() -> Any:
    return require_package("nncf", "quantising by NNCF", "layermerge[nncf]")


def in_integers_by_nncf(
    model: Model, feeds: Sequence[Feed], processor: Instructions, left_out: Collection[str]
) -> Model:
    """The network in integers, ranges and biases by NNCF itself, on these inputs."""
    nncf = nncf_library()
    fix = nncf.OverflowFix.DISABLE if processor.weight_bits == 8 else nncf.OverflowFix.ENABLE
    with quieted(), contextlib.redirect_stdout(io.StringIO()):  # of its progress bars
        return nncf.quantize(
            copy.deepcopy(model),
            nncf.Dataset(feeds),
            subset_size=len(feeds),
            preset=nncf.QuantizationPreset.MIXED,
            ignored_scope=nncf.IgnoredScope(names=sorted(left_out)),
            advanced_parameters=nncf.AdvancedQuantizationParameters(overflow_fix=fix),
        )
