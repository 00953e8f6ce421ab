"""What can go wrong for a user. Each message is one line: what, where, what to try."""

from __future__ import annotations

import errno

_MACHINE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE}


def machine_failed(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is the machine's: a full disk, say, which no other input would empty."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _MACHINE:
            return True
        error = error.__cause__
    return False


def first_line(error: BaseException) -> str:
    """What an error of somebody else's code says, cut to fit into a line of ours; its name where it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:240]


class LayerMergeError(Exception):
    """Base of every error that a user's input can cause; the command line prints it and exits with 2."""


class GeometryError(LayerMergeError, ValueError):
    """A convolution geometry that no convolution can have."""


class ModelError(LayerMergeError):
    """A model that cannot be found, imported or built by the name it was given."""


class TraceError(LayerMergeError):
    """A model that cannot be traced, or whose lifted form does not compute the same."""


class PlanError(LayerMergeError):
    """Rules that name no layer, contradict each other, or leave nothing to choose."""


class SurgeryError(LayerMergeError):
    """Candidates that do not fit the network, or a merge that would not compute the same."""


class ArtifactError(LayerMergeError):
    """A file that is missing, torn, of another network or of a newer version."""


class DataError(LayerMergeError):
    """Data that is missing, torn or inconsistent, or a preparation that does not fit it."""
