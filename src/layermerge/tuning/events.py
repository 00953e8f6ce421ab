"""Events: the recovery curve for TensorBoard, an optional package.

In: rows. Out: event files in `tensorboard/` of the run's directory. Guarantees: a missing package is known before training;
a resumed run replaces what an interrupted one wrote beyond its checkpoint.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from layermerge.errors import TuningError
from layermerge.tuning.recovery import Epoch


class Events:
    """Writes rows as scalars; files appear with the first row."""

    def __init__(self, directory: Path) -> None:
        if find_spec("tensorboard") is None:
            raise TuningError("the recipe asks for tensorboard, which is not installed; pip install tensorboard")
        self.directory = directory / "tensorboard"
        self._writer: Any = None

    def add(self, row: Epoch) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # slow to import, and rarely wanted

            self._writer = SummaryWriter(str(self.directory), purge_step=row.step)
        for name in ("score", "train_loss", "lr"):
            if getattr(row, name) is not None:
                self._writer.add_scalar(name, getattr(row, name), row.step)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
