"""The archive of a `.pt2` file: a zip of JSON and of raw numbers. Pickles, which it may hold too, are not opened.

In: a file that `torch.export.save` wrote. Out: the program's JSON, and its tensors by name. `torch.export.load` would unpickle
and evaluate parts of the file; here they are data.
"""

from __future__ import annotations

import json
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from layermerge.errors import ArtifactError, first_line

SCHEMA_MAJOR = 8
"""Of the program's JSON, as torch 2.9 to 2.15 write it."""
DTYPES = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    12: torch.bool,
    13: torch.bfloat16,
}
"""Numbers of dtypes in the JSON: those that networks of images have."""
_STRIDED = 7


@dataclass(frozen=True)
class Archive:
    """What a file says: the program, and its weights and constants under the names that the program has for them."""

    place: str
    program: dict[str, Any]
    tensors: dict[str, Tensor]


def read_archive(path: Path) -> Archive:
    """Opens a file; what is not an archive of one exported program is one line."""
    place = f"'{path}'"
    try:
        with zipfile.ZipFile(path) as file:
            return _contents(file, place)
    except FileNotFoundError:
        raise ArtifactError(f"{place} does not exist") from None
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise ArtifactError(
            f"{place} cannot be read ({first_line(error)}); it is truncated or not a .pt2 file"
        ) from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, RuntimeError) as error:
        # of an entry that is not there, or is not what torch writes
        raise ArtifactError(f"{place} is not a program that torch.export.save wrote: {first_line(error)}") from None


def _contents(file: zipfile.ZipFile, place: str) -> Archive:
    programs = [name for name in file.namelist() if name.endswith("/models/model.json")]
    if len(programs) != 1:
        raise ArtifactError(f"{place} holds no exported program; give a file that layermerge.export wrote as .pt2")
    root = programs[0].removesuffix("models/model.json")
    order = root + "byteorder"
    if order in file.namelist() and file.read(order).strip() != b"little":
        raise ArtifactError(f"{place} was written on a big-endian machine; export it again on a little-endian one")
    program = json.loads(file.read(programs[0]))
    version = program["schema_version"]["major"]
    if version != SCHEMA_MAJOR:
        raise ArtifactError(
            f"{place} is of version {version} of torch's format, written by torch {program.get('torch_version', '?')}; "
            f"only version {SCHEMA_MAJOR} can be read, so export it again"
        )
    tensors: dict[str, Tensor] = {}
    for kind in ("weights", "constants"):
        folder = f"{root}data/{kind}/"
        listed = json.loads(file.read(f"{folder}model_{kind}_config.json"))["config"]
        storages: dict[str, bytearray] = {}
        for name, meta in listed.items():
            tensors[name] = _tensor(file, folder, name, meta, storages, place)
    return Archive(place, program, tensors)


def _tensor(
    file: zipfile.ZipFile, folder: str, name: str, meta: dict[str, Any], storages: dict[str, bytearray], place: str
) -> Tensor:
    """One tensor, from the raw bytes that it may share with others."""
    about = meta["tensor_meta"]
    if meta["use_pickle"] or about is None or about["layout"] != _STRIDED or about["dtype"] not in DTYPES:
        raise ArtifactError(
            f"{place} holds '{name}' in a form that cannot be read without running code from the file; "
            "load the network with its class: layermerge.load(directory, model)"
        )
    entry = folder + meta["path_name"]
    if entry not in storages:
        storages[entry] = bytearray(file.read(entry))
    raw, dtype = storages[entry], DTYPES[about["dtype"]]
    sizes, strides = ([_fixed(each) for each in about[key]] for key in ("sizes", "strides"))
    if not math.prod(sizes):
        return torch.empty(sizes, dtype=dtype)
    flat = torch.frombuffer(raw, dtype=dtype)
    # A copy: aligned as torch aligns, so that the same kernels run as on the tensor that was saved.
    return flat.as_strided(sizes, strides, _fixed(about["storage_offset"])).clone()


def _fixed(size: dict[str, Any]) -> int:
    value = size["as_int"]
    if type(value) is not int or value < 0:
        raise ValueError("a tensor's size is not a whole number")
    return value
