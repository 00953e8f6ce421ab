"""Events: the recovery curve for TensorBoard, an optional package.

In: epochs. Out: event files in `tensorboard/` of the run's directory. Guarantees: a missing package is known before training;
a resumed run replaces what an interrupted one wrote beyond its checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from layermerge.errors import require_package
from layermerge.tuning.recovery import Epoch


class Events:
    """Writes epochs as scalars; files appear with the first one."""

    def __init__(self, directory: Path) -> None:
        require_package("tensorboard", "the recipe's tensorboard: true", "layermerge[tensorboard]")
        self.directory = directory / "tensorboard"
        self._writer: Any = None

    def add(self, epoch: Epoch) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # slow to import, and rarely wanted

            self._writer = SummaryWriter(str(self.directory), purge_step=epoch.step)
        for name in ("score", "train_loss", "lr"):
            if getattr(epoch, name) is not None:
                self._writer.add_scalar(name, getattr(epoch, name), epoch.step)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
