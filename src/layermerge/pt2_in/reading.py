"""From .pt2: a file of `torch.export` in, a module out, without the class of the network; nothing in the file is run.

`torch.export.load` unpickles what it finds, evaluates expressions and looks names up below torch, so it is not used: the
program is read as data (`archive`), each operator is one of torch's own (`operators`), and sizes are checked (`sizes`).
"""

from __future__ import annotations

import keyword
import operator
import re
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo

from layermerge.errors import ArtifactError, first_line
from layermerge.pt2_in.archive import DTYPES, Archive, read_archive
from layermerge.pt2_in.operators import operator_named
from layermerge.pt2_in.sizes import Condition, FreeSize, axes_of, require_sizes
from layermerge.pt2_in.structures import structure_of
from layermerge.tracing.input_checks import require_shape
from layermerge.tracing.lift import LiftedModule

_PATH = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")
_LAYOUTS = {7: torch.strided}
_MEMORY_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}
_PLAIN: dict[str, type | tuple[type, ...]] = {
    "as_int": int,
    "as_float": (int, float),
    "as_bool": bool,
    "as_string": str,
    "as_ints": int,
    "as_floats": (int, float),
    "as_bools": bool,
}
_INFINITIES = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}
_KEYWORD = 2


def from_pt2(path: Path) -> LiftedModule:
    """Reads a network in eval mode, with its weights under their names. Inputs that it was not exported for are refused."""
    archive = read_archive(path)
    try:
        module = _Program(archive).module()
        module.eval()
        return module
    except ArtifactError:
        raise
    except Exception as error:  # whatever a file that torch did not write leads to
        raise ArtifactError(f"{archive.place} is not a program that can be read: {first_line(error)}") from error


class _Program:
    """The program of one file, on its way to a graph; `values` are the nodes by their names in the file."""

    def __init__(self, archive: Archive) -> None:
        self.archive, self.place = archive, archive.place
        self.about = archive.program["graph_module"]
        self.described = self.about["graph"]
        # Filled as it is: GraphModule's constructor would copy tensors over and forget which buffers are saved.
        self.root, self.graph = LiftedModule(nn.Module(), fx.Graph()), fx.Graph()
        self.values: dict[str, Any] = {}
        self.inputs: list[str] = []

    def module(self) -> LiftedModule:
        called = next(each["signature"] for each in self.about["module_call_graph"] if each["fqn"] == "")
        specs = self.about["signature"]["input_specs"]
        for spec in specs:  # placeholders come first in a graph
            if "user_input" in spec or "constant_input" in spec:
                self._take(spec)
        for spec in specs:
            if "user_input" not in spec and "constant_input" not in spec:
                self._hold(spec)
        self._check_inputs()
        for node in self.described["nodes"]:
            self._call(node)
        returned = []
        for spec in self.about["signature"]["output_specs"]:
            if "user_output" not in spec:
                raise ArtifactError(f"{self.place} changes its weights when it runs; export the network in eval mode")
            returned.append(self._argument(spec["user_output"]["arg"]))
        self.graph.output(tuple(returned))
        taken, given = structure_of(called["in_spec"]), structure_of(called["out_spec"])
        names = [_identifier(name) for name in called["forward_arg_names"] or self.inputs]
        self.graph.set_codegen(_PyTreeCodeGen(_PyTreeInfo(names, taken, given)))
        self.graph.lint()
        self.root.graph = self.graph
        return self.root

    # -- what goes in

    def _take(self, spec: dict[str, Any]) -> None:
        if "constant_input" in spec:
            raise ArtifactError(f"{self.place} takes an input that is not a tensor; export it with tensors alone")
        name = spec["user_input"]["arg"]["as_tensor"]["name"]
        self.values[name] = self.graph.placeholder(_identifier(name))
        self.inputs.append(name)

    def _hold(self, spec: dict[str, Any]) -> None:
        """A weight or a constant, under its name in the network."""
        (kind, about), *_ = spec.items()
        if kind not in ("parameter", "buffer", "tensor_constant"):
            raise ArtifactError(f"{self.place} needs a {kind}, which cannot be read without running code from the file")
        path = about[f"{kind}_name"]
        if not _PATH.fullmatch(path):
            raise ValueError(f"'{path[:40]}' is not a name of a weight")
        tensor, (*outer, last) = self.archive.tensors[path], path.split(".")
        home: nn.Module = self.root
        for name in outer:
            if name not in home._modules:
                home.add_module(name, nn.Module())
            home = home.get_submodule(name)
        if kind == "parameter":
            home.register_parameter(last, nn.Parameter(tensor, requires_grad=tensor.is_floating_point()))
        else:
            home.register_buffer(last, tensor, persistent=bool(about.get("persistent", False)))
        self.values[about["arg"]["name"]] = self.graph.get_attr(path)

    def _check_inputs(self) -> None:
        ranges = self.archive.program["range_constraints"]
        shapes = []
        for name in self.inputs:
            axes = axes_of(self.described["tensor_values"][name], ranges, self.place)
            fixed = tuple(None if isinstance(axis, FreeSize) else axis for axis in axes)
            self.graph.call_function(require_shape, (self.values[name], name, fixed))
            shapes.append(
                tuple((axis.symbol, axis.low, axis.high) if isinstance(axis, FreeSize) else None for axis in axes)
            )
        names, conditions = tuple(self.inputs), tuple(self.archive.program.get("guards_code") or ())
        for condition in conditions:
            Condition.parse(condition, names)  # what is not arithmetic is refused here, before anything runs
        values = tuple(self.values[name] for name in names)
        self.graph.call_function(require_sizes, (values, names, tuple(shapes), conditions))

    # -- what is computed

    def _call(self, node: dict[str, Any]) -> None:
        target = operator_named(node["target"], self.place)
        by_name = set()
        if isinstance(target, torch._ops.OpOverload):
            by_name = {each.name for each in target._schema.arguments if each.kwarg_only}
        args, kwargs = [], {}
        for given in node["inputs"]:
            value = self._argument(given["arg"])
            if given.get("kind") == _KEYWORD or given["name"] in by_name:
                kwargs[given["name"]] = value
            else:
                args.append(value)
        called = self.graph.call_function(target, tuple(args), kwargs)
        outputs = node["outputs"]
        if len(outputs) == 1:
            self._name(outputs[0], called)
            return
        for number, output in enumerate(outputs):
            if "as_none" not in output:
                self._name(output, self.graph.call_function(operator.getitem, (called, number)))

    def _name(self, output: dict[str, Any], value: fx.Node) -> None:
        (kind, about), *_ = output.items()
        if kind == "as_tensor":
            self.values[about["name"]] = value
        elif kind in ("as_sym_int", "as_sym_float", "as_sym_bool"):
            self.values[about["as_name"]] = value
        elif kind == "as_tensors":
            for number, each in enumerate(about):
                self.values[each["name"]] = self.graph.call_function(operator.getitem, (value, number))
        elif kind != "as_none":
            raise ValueError(f"an operator gives '{kind[:40]}', which is not known")

    def _argument(self, described: dict[str, Any]) -> Any:
        """An argument as the file writes it: one entry, whose key says its kind."""
        ((kind, value),) = described.items()
        match kind:
            case "as_none":
                return None
            case "as_tensor":
                return self.values[value["name"]]
            case "as_tensors":
                return [self.values[each["name"]] for each in value]
            case "as_optional_tensor":
                return self._argument(value)
            case "as_optional_tensors":
                return [self._argument(each) for each in value]
            case "as_sym_int" | "as_sym_float" | "as_sym_bool":
                return self.values[value["as_name"]] if "as_name" in value else self._argument(value)
            case "as_sym_ints" | "as_sym_floats" | "as_sym_bools":
                return [self._argument({kind[:-1]: each}) for each in value]
            case "as_scalar_type":
                return DTYPES[value]
            case "as_memory_format":
                return _MEMORY_FORMATS[value]
            case "as_layout":
                return _LAYOUTS[value]
            case "as_device":
                # Weights are read onto the processor, wherever they were when the file was written.
                return torch.device("cpu")
        return _plain(kind, value)


def _plain(kind: str, value: Any) -> Any:
    """A number, a text, or a list of numbers; nothing else can be a value."""
    if kind not in _PLAIN:
        raise ValueError(f"an argument is of kind '{kind[:40]}', which is not known")
    if kind == "as_float" and isinstance(value, str):
        return _INFINITIES[value]
    parts = value if kind.endswith("s") else [value]
    if not isinstance(parts, list) or not all(isinstance(part, _PLAIN[kind]) for part in parts):
        raise ValueError(f"an argument is not of the kind '{kind}' that it is said to be")
    return value


def _identifier(name: str) -> str:
    """A name that may stand in the code that torch makes of a graph."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"'{name[:40]}' is not a name of an input")
    return name
