"""Artifacts: our types as versioned JSON, fingerprints, and writes that happen whole or not at all.

A file of a newer schema, of another network, or torn, is an `ArtifactError` of one line; nothing is evaluated or unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor, nn

from layermerge.conv import ConvSpec
from layermerge.errors import ArtifactError
from layermerge.planning.plan import Candidate, Plan
from layermerge.planning.rules import Rules
from layermerge.tracing.capture import Inputs
from layermerge.tracing.structure import Layer, OpStep, Structure
from layermerge.tracing.structure import Path as ChainPath

SCHEMA: Literal[1] = 1


class Record(BaseModel):
    """Base of all records: unknown keys and wrong types are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TensorRecord(Record):
    """An example input without its values."""

    shape: tuple[int, ...]
    dtype: str


InputRecord = TensorRecord | bool | int | float | str | None


class SpecRecord(Record):
    """A `ConvSpec`; padding is top, bottom, left, right."""

    in_channels: int
    out_channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int


class LayerRecord(Record):
    """A layer of the plan; shapes are channels, height, width."""

    name: str
    spec: SpecRecord
    input_shape: tuple[int, int, int]
    output_shape: tuple[int, int, int]
    l1: float


class CandidateRecord(Record):
    """A `Candidate`; spec is null for an identity."""

    start: int
    end: int
    layers: tuple[str, ...]
    kept: tuple[str, ...]
    spec: SpecRecord | None
    fixed: bool = False


class WorkRecord(Record):
    """What a candidate makes a runtime do: a conv on a map of this shape, and the operators behind it."""

    spec: SpecRecord
    input_shape: tuple[int, int, int]
    follow: tuple[str, ...]


class RejectionRecord(Record):
    """A range of layers that follow each other and yet do not merge, and why."""

    start: int
    end: int
    reason: str


class PlanRecord(Record):
    """plan.json: what the network was, and what was on the menu; enough to trace it again."""

    schema_version: Literal[1] = SCHEMA
    fingerprint: str
    args: tuple[InputRecord, ...]
    kwargs: dict[str, InputRecord]
    layers: tuple[LayerRecord, ...]
    candidates: tuple[CandidateRecord, ...]
    method: str = "layermerge"
    rules: Rules = Rules()
    rejections: tuple[RejectionRecord, ...] = ()
    works: dict[str, WorkRecord | None] = {}
    """By candidate key: all that a device needs to measure the latency table."""


class SolutionRecord(Record):
    """solution.json: what was chosen, and in which form the weights beside it are."""

    schema_version: Literal[1] = SCHEMA
    fingerprint: str
    form: Literal["rewritten", "merged"]
    added_activations: bool
    candidates: tuple[CandidateRecord, ...]


def weights_digest(module: nn.Module) -> str:
    """Names a network's weights and buffers, to the last bit."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


def fingerprint(structure: Structure) -> str:
    """Names a network's structure: layers with their geometry and shapes, and how paths and blocks link them.

    Weights do not matter, nor do the names that torch gives to operators.
    """

    def links(path: ChainPath) -> list[str]:
        return [step.role.value if isinstance(step, OpStep) else str(step) for step in path]

    layers = [[layer.name, _spec_data(layer.spec), layer.input_shape, layer.output_shape] for layer in structure.layers]
    blocks = [[block.start, block.end, links(block.body), links(block.bypass)] for block in structure.blocks]
    document = json.dumps([layers, blocks, [links(chain) for chain in structure.chains]])
    return hashlib.sha256(document.encode()).hexdigest()[:32]


def _spec_data(spec: ConvSpec) -> dict[str, Any]:
    return {field: getattr(spec, field) for field in SpecRecord.model_fields}


def spec_record(spec: ConvSpec) -> SpecRecord:
    return SpecRecord(**_spec_data(spec))


def spec_of(record: SpecRecord) -> ConvSpec:
    return ConvSpec(**dict(record))


def candidate_record(candidate: Candidate) -> CandidateRecord:
    spec = None if candidate.spec is None else spec_record(candidate.spec)
    return CandidateRecord(
        start=candidate.start,
        end=candidate.end,
        layers=candidate.layers,
        kept=candidate.kept,
        spec=spec,
        fixed=candidate.fixed,
    )


def candidate_of(record: CandidateRecord) -> Candidate:
    spec = None if record.spec is None else spec_of(record.spec)
    return Candidate(record.start, record.end, record.layers, record.kept, spec, record.fixed)


def plan_record(structure: Structure, inputs: Inputs, candidates: tuple[Candidate, ...]) -> PlanRecord:
    return PlanRecord(
        fingerprint=fingerprint(structure),
        args=tuple(_input_record(value) for value in inputs.args),
        kwargs={name: _input_record(value) for name, value in inputs.kwargs.items()},
        layers=tuple(
            LayerRecord(
                name=layer.name,
                spec=spec_record(layer.spec),
                input_shape=layer.input_shape,
                output_shape=layer.output_shape,
                l1=layer.l1,
            )
            for layer in structure.layers
        ),
        candidates=tuple(candidate_record(candidate) for candidate in candidates),
    )


def plan_of(record: PlanRecord) -> Plan:
    """The menu of a saved plan, without the network it is of: enough for tables and the solver."""
    layers = tuple(
        Layer(layer.name, spec_of(layer.spec), layer.input_shape, layer.output_shape, layer.l1, node=layer.name)
        for layer in record.layers
    )
    candidates = tuple(candidate_of(candidate) for candidate in record.candidates)
    return Plan(layers, candidates, (), record.rules, record.method)


def _input_record(value: Any) -> InputRecord:
    if isinstance(value, Tensor):
        return TensorRecord(shape=tuple(value.shape), dtype=str(value.dtype).removeprefix("torch."))
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ArtifactError(
        f"an example input of type {type(value).__name__} cannot be saved; pass tensors and plain values only"
    )


def example_inputs(record: PlanRecord) -> Any:
    """Inputs of the saved shapes and dtypes: random where floating point, zero where not."""
    generator = torch.Generator().manual_seed(0)

    def make(value: InputRecord) -> Any:
        if not isinstance(value, TensorRecord):
            return value
        dtype = getattr(torch, value.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise ArtifactError(f"plan.json names an unknown dtype '{value.dtype}'")
        if dtype.is_floating_point:
            return torch.randn(value.shape, generator=generator).to(dtype)
        return torch.zeros(value.shape, dtype=dtype)

    args = tuple(make(value) for value in record.args)
    kwargs = {name: make(value) for name, value in record.kwargs.items()}
    if args and kwargs:
        raise ArtifactError("plan.json mixes positional and keyword inputs; save it again")
    return kwargs or args


_RecordKind = TypeVar("_RecordKind", bound=Record)


def read_record(path: Path, kind: type[_RecordKind]) -> _RecordKind:
    """Reads and validates a JSON artifact."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArtifactError(f"'{path}' does not exist; is '{path.parent}' a run directory?") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ArtifactError(f"'{path}' cannot be read: {str(error).splitlines()[0]}") from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    if isinstance(version, int) and version > SCHEMA:
        raise ArtifactError(f"'{path}' has schema {version}, this layermerge reads up to {SCHEMA}; upgrade layermerge")
    try:
        return kind.model_validate_json(json.dumps(data))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ArtifactError(f"'{path}' is not a valid {path.name}: {place or 'document'}: {first['msg']}") from error


def record_text(record: Record) -> str:
    return record.model_dump_json(indent=1) + "\n"


def _umask() -> int:
    """The process's umask, which can only be read by setting it; temporary files ignore it otherwise."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def text_writer(text: str) -> Callable[[Path], None]:
    """For `write_files`: writes this text."""

    def write(path: Path) -> None:
        path.write_text(text, encoding="utf-8")

    return write


def write_files(contents: dict[Path, Callable[[Path], None]]) -> None:
    """Writes files beside their places first and moves them there when all are complete."""
    ready: list[tuple[Path, Path]] = []
    try:
        for path, write in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
            os.close(descriptor)
            ready.append((Path(name), path))
            write(Path(name))
            Path(name).chmod(0o666 & ~_umask())  # afterwards: safetensors puts a file of its own there
        for temporary, path in ready:
            temporary.replace(path)
    except OSError as error:
        a_file = isinstance(error, (FileExistsError, NotADirectoryError))
        reason = "there is a file where a directory should be" if a_file else error.strerror or error
        raise ArtifactError(f"cannot write {', '.join(map(str, contents))}: {reason}") from error
    finally:
        for temporary, _ in ready:
            temporary.unlink(missing_ok=True)
