"""What can go wrong for a user. Each message is one line: what, where, what to try."""

from __future__ import annotations

import errno
import importlib
import math
from fractions import Fraction
from types import ModuleType

_MACHINE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE}


def machine_failed(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is the machine's: a full disk, say, which no other input would empty."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _MACHINE:
            return True
        error = error.__cause__
    return False


def first_line(error: BaseException) -> str:
    """What an error from other code says, cut to fit into a line of ours; its name where it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:240]


class LayerMergeError(Exception):
    """Base of every error that a user's input can cause; the command line prints it and exits with 2."""


class MissingPackage(LayerMergeError):
    """An optional package that is needed here and not installed, or that cannot be imported."""


def require_package(name: str, purpose: str, extra: str) -> ModuleType:
    """Imports an optional package; what is missing is one line: `purpose` needs `name`, and how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        reason = (
            "which is not installed" if isinstance(error, ModuleNotFoundError) else f"which fails: {first_line(error)}"
        )
        raise MissingPackage(f"{purpose} needs {name}, {reason}; try: pip install '{extra}'") from error


class GeometryError(LayerMergeError, ValueError):
    """A convolution geometry that no convolution can have."""


class ModelError(LayerMergeError):
    """A model that cannot be found, imported or built by the name it was given."""


class TraceError(LayerMergeError):
    """A model that cannot be traced, or whose lifted form does not compute the same."""


class InputError(LayerMergeError):
    """An input that a traced network was not captured for: another size, number of dimensions or value."""


class PlanError(LayerMergeError):
    """Rules that name no layer, contradict each other, or leave nothing to choose."""


class SurgeryError(LayerMergeError):
    """Candidates that do not fit the network, or a merge that would not compute the same."""


class ArtifactError(LayerMergeError):
    """A file that is missing, truncated, of another network or of a newer version."""


class DataError(LayerMergeError):
    """Data that is missing, truncated or inconsistent, or a preparation that does not fit it."""


class PlotError(LayerMergeError):
    """A picture that cannot be drawn or written."""


class TableError(LayerMergeError):
    """A table that is missing, truncated, in use, of other provenance, or that lacks an entry."""


class TuningError(LayerMergeError):
    """Training that cannot start, continue from what is on disk, or end well."""


class RuntimeUnavailable(LayerMergeError):
    """A runtime that is not installed, or cannot run here."""


class BaselineError(LayerMergeError):
    """A network that cannot lose channels or be given fresh weights, or a share of channels that makes no sense."""


class RecipeError(LayerMergeError):
    """A recipe that cannot be read, or that asks for what does not exist."""


class BudgetError(LayerMergeError):
    """A budget that cannot be read, or is not above zero."""


class InfeasibleBudget(LayerMergeError):
    """A budget below every choice; carries the smallest latency that can be reached."""

    def __init__(self, smallest_ms: float, budget_ms: float, original_ms: float) -> None:
        # The fields are the exception's arguments, so that it survives the way back from a worker process.
        super().__init__(smallest_ms, budget_ms, original_ms)
        self.smallest_ms = smallest_ms
        self.budget_ms = budget_ms
        self.original_ms = original_ms

    def __str__(self) -> str:
        # Rounded up: what the message names can be asked for.
        smallest = math.ceil(Fraction(self.smallest_ms) * 10_000) / 10_000
        share = math.ceil(Fraction(self.smallest_ms) / Fraction(self.original_ms) * 10_000) / 100
        return (
            f"no choice of candidates runs in {self.budget_ms:.4f} ms; the smallest reachable latency is {smallest:.4f} ms, "
            f"{share:.2f}% of the original; ask for at least that"
        )


class OptionError(LayerMergeError):
    """Options that cannot be chained into a network: a bad value, a range outside it, a key given twice, a gap."""
