"""Reading: an ONNX file, checked before anything is made of it.

In: a path. Out: a ModelProto whose weights are all inside it. Guarantees: nothing outside the file's folder is read, no more
than 2 GB in all; a file that is not whole, not ONNX, cyclic, or that holds loops or functions is one line.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from layermerge.errors import ModelError, first_line, require_package

MOST_BYTES = (1 << 31) - 1
"""Of a file with its weights: what a protobuf message can hold."""
MOST_NODES = 50_000
_STANDARD = ("", "ai.onnx")


def import_onnx() -> Any:
    return require_package("onnx", "reading an ONNX file", "layermerge[export]")


def read_model(path: Path) -> Any:
    """The file as a ModelProto, checked."""
    onnx, place = import_onnx(), f"'{path}'"
    model = _parsed(onnx, path, place)
    if not model.graph.node:
        raise ModelError(f"{place} does not hold a network, or is not an ONNX file; export the network again")
    if len(model.graph.node) > MOST_NODES:
        raise ModelError(f"{place} has {len(model.graph.node):,} nodes; at most {MOST_NODES:,} are read")
    _require_text(model, place)
    _require_plain(onnx, model, place)
    left = MOST_BYTES - path.stat().st_size
    for tensor in _tensors(onnx, model.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            left -= _embed(onnx, tensor, path, left)
        _require_whole(onnx, tensor, place)
    _require_order(model.graph, place)
    return model


def require_valid(model: Any, place: str) -> None:
    """By ONNX's own checker; outputs may leave out their shape, which it asks for."""
    onnx = import_onnx()
    shapeless = [each.type.tensor_type for each in model.graph.output if not each.type.tensor_type.HasField("shape")]
    for kind in shapeless:
        kind.shape.SetInParent()
    try:
        onnx.checker.check_model(model)
    except Exception as error:  # whatever the checker raises
        raise ModelError(f"{place} is not a valid ONNX file: {first_line(error)}") from None
    for kind in shapeless:
        kind.ClearField("shape")


def _parsed(onnx: Any, path: Path, place: str) -> Any:
    if not path.is_file():
        said = "is a folder" if path.is_dir() else "is not a file" if path.exists() else "does not exist"
        raise ModelError(f"{place} {said}; give the path of an .onnx file")
    if path.stat().st_size > MOST_BYTES:
        raise ModelError(f"{place} has {path.stat().st_size:,} bytes; files of at most {MOST_BYTES:,} are read")
    try:
        return onnx.load_model_from_string(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{place} cannot be read ({error.strerror})") from None
    except Exception:  # protobuf has several, none of which says more
        raise ModelError(f"{place} is truncated or not an ONNX file; export the network again") from None


def _require_text(model: Any, place: str) -> None:
    """Protobuf gives bytes for a name that is not UTF-8."""
    graph = model.graph
    held = (*graph.initializer, *graph.input, *graph.output, *graph.node, *model.functions)
    names = [each.name for each in held] + [opset.domain for opset in model.opset_import]
    for node in graph.node:
        names += [node.op_type, node.domain, *node.input, *node.output, *(each.name for each in node.attribute)]
    if any(isinstance(name, bytes) for name in names):
        raise ModelError(f"{place} holds names that are not text; the file is damaged")


def _require_plain(onnx: Any, model: Any, place: str) -> None:
    """Only graphs of standard operators: nothing that is run several times, or that is defined in the file itself."""
    if model.functions:
        name = shown(model.functions[0].name)
        raise ModelError(
            f"{place} defines operators of its own, such as '{name}'; write them out: onnx.inliner.inline_local_functions"
        )
    if not any(opset.domain in _STANDARD for opset in model.opset_import):
        raise ModelError(f"{place} does not say which version of the standard operators it uses; export it again")
    if model.graph.sparse_initializer:
        raise ModelError(f"{place} holds sparse weights; export the network with dense ones")
    for node in model.graph.node:
        if any(each.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for each in node.attribute):
            raise ModelError(f"{place}: {named(node)} holds a graph of its own; control flow cannot be traced")
        if node.domain not in _STANDARD:
            raise ModelError(
                f"{place}: {named(node)} is in the domain '{shown(node.domain)}'; only standard operators can be read"
            )


def named(node: Any) -> str:
    """How messages call a node: by its operator and its name, or else by what it gives."""
    name = node.name or (node.output[0] if node.output else "")
    return f"operator {shown(node.op_type)} of node '{shown(name)}'"


def shown(text: str) -> str:
    """What messages quote of a file: one line of printable characters."""
    return "".join(each if each.isprintable() else " " for each in text[:80])


def _tensors(onnx: Any, graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.SPARSE_TENSOR:
                raise ModelError(f"{named(node)} holds sparse weights; export the network with dense ones")
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            yield from attribute.tensors


# -- weights


def _require_whole(onnx: Any, tensor: Any, place: str) -> None:
    """That a tensor holds as many values as its shape says: no shape is believed."""
    said = f"{place}: tensor '{shown(tensor.name)}'"
    if any(size < 0 for size in tensor.dims):
        raise ModelError(f"{said} has a negative size; the file is damaged")
    values = prod(tensor.dims)
    if tensor.data_type == onnx.TensorProto.STRING:
        raise ModelError(f"{said} holds text; only networks of numbers can be read")
    held = _held(onnx, tensor)
    if held is None:
        raise ModelError(f"{said} is of a type that cannot be read; export the network in float32")
    if held != values:
        raise ModelError(f"{said} has {held:,} values where its shape {list(tensor.dims)} says {values:,}")


def _held(onnx: Any, tensor: Any) -> int | None:
    """How many values are there; None of a type that numpy lacks."""
    try:
        wide = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
    except (KeyError, TypeError, ValueError):
        return None
    if tensor.HasField("raw_data"):
        return len(tensor.raw_data) // wide if len(tensor.raw_data) % wide == 0 else -1
    return len(getattr(tensor, field))


def _embed(onnx: Any, tensor: Any, path: Path, left: int) -> int:
    """Reads what a tensor keeps in another file, and says how many bytes that were."""
    said = f"'{path}': tensor '{shown(tensor.name)}'"
    entries = {entry.key: entry.value for entry in tensor.external_data}
    file = _inside(path, entries.get("location", ""), said)
    try:
        wide = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        offset, length = int(entries.get("offset", "0")), int(entries.get("length", prod(tensor.dims) * wide))
    except (KeyError, TypeError, ValueError):
        raise ModelError(f"{said} does not say where its values are; the file is damaged") from None
    size = file.stat().st_size
    if min(offset, length) < 0 or offset + length > size:
        raise ModelError(f"{said} ends at byte {offset + length:,} of '{file.name}', which has {size:,}")
    if length > left:
        raise ModelError(f"{said}: weights and file have more than {MOST_BYTES:,} bytes together; no more are read")
    with file.open("rb") as stream:
        stream.seek(offset)
        tensor.raw_data = stream.read(length)
    tensor.data_location = onnx.TensorProto.DEFAULT
    del tensor.external_data[:]
    return length


def _inside(path: Path, location: str, said: str) -> Path:
    """A regular file in the folder of the model or below it, links followed."""
    folder = path.resolve().parent
    if not location or "\0" in location or Path(location).is_absolute():
        raise ModelError(
            f"{said} keeps its values in '{shown(location)}', which is not a path within the file's folder"
        )
    file = (folder / location).resolve()
    if folder not in file.parents:
        raise ModelError(
            f"{said} keeps its values in '{shown(location)}', outside the file's folder; nothing is read there"
        )
    if not file.is_file():
        raise ModelError(f"{said} keeps its values in '{shown(location)}', which is not there; put it beside the file")
    return file


# -- the graph


def _require_order(graph: Any, place: str) -> None:
    """That every value is given once, before it is read: then there is no cycle."""
    known = {"", *(each.name for each in graph.initializer), *(each.name for each in graph.input)}
    made = set(known)
    everything = {name for node in graph.node for name in node.output}
    for node in graph.node:
        for name in node.input:
            if name not in made:
                why = "which is computed from it or behind it" if name in everything else "which nothing gives"
                raise ModelError(f"{place}: {named(node)} reads '{shown(name)}', {why}")
        for name in filter(None, node.output):
            if name in made:
                raise ModelError(f"{place}: {named(node)} gives '{shown(name)}', which is given before")
            made.add(name)
    for result in graph.output:
        if result.name not in made:
            raise ModelError(f"{place}: nothing gives the output '{shown(result.name)}'")
