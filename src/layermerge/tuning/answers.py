"""Answers: what a teacher says to the batches of an epoch, kept in files for all trainings that draw the same batches.

In: a folder, and what answers depend on. Out: the answer at each step, from the file where there is one, otherwise by asking,
and then kept once the epoch is whole. Guarantees: a file is believed only if the teacher, asked once, still says the same; it
is whole or absent, so that a kill loses an epoch at most, and trainings side by side may share a folder. Answers that are not
one tensor, or too many to keep, are asked for each time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from layermerge.files import write_files

LARGEST = 256 * 2**20
"""Bytes an epoch: ten classes of five million images, or a thousand of fifty thousand."""
_NAME = "answers"


class KeptAnswers:
    """The answers of one teacher to one sequence of batches."""

    def __init__(self, folder: Path, stamp: str, per_epoch: int, device: torch.device) -> None:
        self.folder, self.stamp, self.per_epoch, self.device = folder, stamp, per_epoch, device
        self._epoch = -1
        self._known: Tensor | None = None
        self._doubted = False
        self._heard: list[Tensor] = []

    def at(self, step: int, ask: Callable[[], Any]) -> Any:
        """The answer to the batch of a step; steps are taken in order, from anywhere."""
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._heard, self._known, self._doubted = epoch, [], None, False
        if self._known is not None:
            return self._known[place]
        answer, file = ask(), self._file(epoch)
        if not self._doubted and file.is_file():  # there from the start, or another training has just written it
            known = self._read(file)
            if known is not None and _same(known[place], answer):
                self._known = known
                return known[place]
            self._doubted = True  # asked for again, and replaced
        self._hear(place, answer)
        return answer

    def _file(self, epoch: int) -> Path:
        return self.folder / f"{self.stamp}-{epoch}.safetensors"

    def _hear(self, place: int, answer: Any) -> None:
        if place != len(self._heard) or not isinstance(answer, Tensor) or not answer.is_floating_point():
            return  # begun in the middle of an epoch, or nothing that a file takes
        if answer.nbytes * self.per_epoch > LARGEST:
            return
        self._heard.append(answer.detach().to("cpu", copy=True))
        if place + 1 == self.per_epoch and len({answer.shape for answer in self._heard}) == 1:
            content: bytes = save({_NAME: torch.stack(self._heard)})

            def write(path: Path) -> None:
                path.write_bytes(content)

            write_files({self._file(self._epoch): write})

    def _read(self, file: Path) -> Tensor | None:
        try:
            known = load_file(file, device=str(self.device))[_NAME]
        except (SafetensorError, OSError, KeyError):
            return None
        return known if len(known) == self.per_epoch else None


def _same(kept: Tensor, said: Any) -> bool:
    """Up to rounding, which differs between processors."""
    if not isinstance(said, Tensor) or said.shape != kept.shape or said.dtype != kept.dtype:
        return False
    apart = (said - kept).abs().max() if kept.numel() else torch.zeros(())
    return bool(apart <= torch.finfo(kept.dtype).eps ** 0.5 * kept.abs().max())
