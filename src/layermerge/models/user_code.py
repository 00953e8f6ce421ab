"""Models of the user's own: `python:module:callable`. The one source that runs code; recipes need permission to name it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from torch import nn

from layermerge.errors import ModelError, first_line
from layermerge.models.torchvision_operators import despite_missing_operators

Result = TypeVar("Result")


def from_python(name: str) -> tuple[nn.Module, object]:
    module_name, _, attribute = name.partition(":")
    if not attribute:
        raise ModelError(f"'python:{name}' is not of the form python:module:callable")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    module = _run(lambda: importlib.import_module(module_name), f"cannot import '{module_name}'")
    build = getattr(module, attribute, None)
    if not callable(build):
        raise ModelError(f"module '{module_name}' has no callable '{attribute}'")
    built = _run(build, f"'{module_name}:{attribute}()' failed")
    model, inputs = built if isinstance(built, tuple) and len(built) == 2 else (built, None)
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"'{module_name}:{attribute}()' returned {type(model).__name__}; return an nn.Module, or (module, example inputs)"
        )
    return model, inputs


def _run(call: Callable[[], Result], doing: str) -> Result:
    """Whatever the user's code raises is an error of the model; so is sys.exit(), which would end the command unexplained."""
    try:
        return despite_missing_operators(call)
    except (Exception, SystemExit) as error:
        raise ModelError(f"{doing}: {type(error).__name__}: {first_line(error)}") from error
