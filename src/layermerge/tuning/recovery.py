"""Recovery: the curve of scores that fine-tuning climbs back on.

In: a loss per step and a score per epoch. Out: one line per epoch, the first before any training, as `recovery.jsonl` and
`recovery.csv`. Guarantees: both files are rewritten whole or not at all, and hold the same epochs.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import ConfigDict, ValidationError

from layermerge.errors import TuningError
from layermerge.files import Record, first_problem, text_writer, write_files

JSONL, CSV = "recovery.jsonl", "recovery.csv"


class Epoch(Record):
    """The state at the end of an epoch."""

    # A score may be infinite or undefined; JSON as Python reads it can say so.
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    epoch: float
    """Epochs trained so far; not whole where training ends within one."""
    step: int
    lr: float
    """Of the last step; 0 before training."""
    train_loss: float | None
    """Mean over the steps since the epoch before; None before training."""
    score: float
    seconds: float
    """Time spent so far, evaluations and earlier, interrupted runs included."""

    def line(self, total: int) -> str:
        """As progress shows it, of this many steps."""
        loss = "" if self.train_loss is None else f"loss {self.train_loss:.4f}, "
        return f"epoch {self.epoch:g}, step {self.step} of {total}: {loss}score {self.score:.4f}, {self.seconds:.0f} s"


class Curve:
    """The epochs so far, and what the next one will need."""

    def __init__(self, epochs: Iterable[Epoch] = (), loss_sum: float = 0.0, seconds: float = 0.0) -> None:
        self.epochs = list(epochs)
        self.loss_sum = loss_sum
        self._started = time.monotonic() - seconds

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def add_loss(self, loss: float) -> None:
        self.loss_sum += loss

    def close_epoch(self, *, epoch: float, step: int, lr: float, score: float) -> Epoch:
        """Adds the epoch of the steps since the last one."""
        loss = self.loss_sum / (step - self.epochs[-1].step) if self.epochs else None
        seconds = round(self.seconds, 3)
        self.epochs.append(Epoch(epoch=epoch, step=step, lr=lr, train_loss=loss, score=score, seconds=seconds))
        self.loss_sum = 0.0
        return self.epochs[-1]


def write_recovery(directory: Path, epochs: Sequence[Epoch]) -> None:
    table = io.StringIO()
    writer = csv.DictWriter(table, list(Epoch.model_fields), lineterminator="\n")
    writer.writeheader()
    writer.writerows(epoch.model_dump() for epoch in epochs)
    lines = "".join(epoch.model_dump_json() + "\n" for epoch in epochs)
    write_files({directory / JSONL: text_writer(lines), directory / CSV: text_writer(table.getvalue())})


def read_recovery(directory: str | Path) -> list[Epoch]:
    """The epochs that fine-tuning left in its directory."""
    path = Path(directory) / JSONL
    try:
        return [Epoch.model_validate_json(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        raise TuningError(f"'{path}' does not exist; fine-tune with directory='{directory}' first") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TuningError(f"'{path}' cannot be read: {error}") from error
    except ValidationError as error:
        raise TuningError(
            f"'{path}' has a bad line ({first_problem(error)}); run the fine-tuning again to rewrite it"
        ) from error
