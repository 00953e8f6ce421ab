"""Free sizes: what a captured graph knows of its sizes, and what it takes for granted of its inputs' sizes.

In: the graph of a capture, with torch's notes. Out: our notes, and checks of the inputs. Torch gives every size of the graph
as a formula of the inputs' sizes. Where `forward()` decides something by a size, the captured way is right only as long as
that decision stays the same: such conditions become checks, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from traceback import FrameSummary
from typing import Any

import sympy
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental import _config as symbolic_config
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._sympy.printers import PythonPrinter

from layermerge.errors import TraceError
from layermerge.tracing.input_checks import require_shape, require_size, require_value
from layermerge.tracing.operators import operator_name
from layermerge.tracing.size_formulas import FormulaWriter, Side

_OURS = Path(__file__).resolve().parents[1]
_TORCH = Path(torch.__file__).resolve().parent
# Where torch works out the shapes that an operator gives. What is decided there does not change which operators run.
_WITHIN_OPERATORS = (
    "_prims", "_prims_common", "_refs", "_decomp", "_meta_registrations.py", "_subclasses", "_ops.py", "_library",
    "_higher_order_ops", "_dispatch", "_functorch", "fx", "export", "_export", "utils",
)  # fmt: skip
_SIZE_READERS = ("sym_size", "sym_stride", "sym_numel", "sym_storage_offset")
_BATCH, _SIDES = 0, (2, 3)
_NAMES = {_BATCH: "N", 2: "H", 3: "W"}


@dataclass(frozen=True)
class _Decision:
    """Something that torch or `forward()` decided by a size: what held, and where."""

    held: sympy.Basic
    module: str
    operator: str
    frame: FrameSummary | None

    @property
    def path(self) -> Path:
        return Path(self.frame.filename).resolve() if self.frame is not None else Path()

    @property
    def within_operator(self) -> bool:
        return _TORCH in self.path.parents and self.path.relative_to(_TORCH).parts[0] in _WITHIN_OPERATORS

    @property
    def place(self) -> str:
        """How the user knows it; nothing where it is a check of a network that was traced before."""
        where = f" in '{self.module}'" if self.module else ""
        if self.within_operator:
            return f"{self.operator}{where}"
        if self.frame is None or _OURS in self.path.parents:
            return ""
        return f"forward(){where}, at {self.path.name}:{self.frame.lineno} ({(self.frame.line or '').strip()})"


class SizeWatch(TorchFunctionMode):
    """Notes, while a model is captured, in which module and operator each decision about a size is made."""

    def __init__(self) -> None:
        super().__init__()
        self.environment: Any = None
        self._where: list[tuple[str, str]] = []
        self._modules, self._operator = [""], ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        self.note(args)
        self._operator = getattr(func, "__name__", str(func))
        result = func(*args, **(kwargs or {}))
        self.note(result)
        return result

    def note(self, values: Any) -> None:
        """Whatever was decided up to now belongs to the innermost module that is running, and to its last operator."""
        for leaf in pytree.tree_leaves(values) if self.environment is None else ():
            sizes: list[Any] = list(leaf.shape) if isinstance(leaf, Tensor) else []
            symbolic = [size for size in sizes if isinstance(size, torch.SymInt)]
            if symbolic:
                self.environment = symbolic[0].node.shape_env
        decided = len(self.environment.guards) if self.environment is not None else 0
        self._where += [(self._modules[-1], self._operator)] * (decided - len(self._where))

    def enter(self, name: str, values: Any) -> None:
        self.note(values)
        self._modules.append(name)

    def leave(self, values: Any) -> None:
        self.note(values)
        self._modules.pop()

    def decisions(self) -> Iterator[_Decision]:
        for guard, (module, operator) in zip(self._guards, self._where, strict=False):
            yield _Decision(guard.expr, module, operator, guard.sloc.framework_loc)

    @property
    def _guards(self) -> list[Any]:
        return self.environment.guards if self.environment is not None else []


@contextmanager
def watched(model: nn.Module) -> Iterator[SizeWatch]:
    """Captures within it keep sizes free even where a map is a single pixel, and decisions about sizes are noted."""
    watch, handles = SizeWatch(), []
    for name, module in model.named_modules():

        def enter(_module: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
            watch.enter(name, (args, kwargs))

        def leave(_module: nn.Module, _args: Any, output: Any) -> None:
            watch.leave(output)

        handles += [module.register_forward_pre_hook(enter, with_kwargs=True), module.register_forward_hook(leave)]
    try:
        with symbolic_config.patch(backed_size_oblivious=True), watch:  # type: ignore[attr-defined]
            yield watch
    finally:
        for handle in handles:
            handle.remove()


# -- notes


def note_sizes(graph: fx.Graph) -> None:
    """Replaces torch's notes by ours: `owner`, and `shape` at the traced size, None where it follows the batch.

    A node that is a size itself has its value at the traced size under `size`; `free` says whether the height or width of a
    feature map follows that of the inputs.
    """
    values = [node.meta.get("val") for node in graph.find_nodes(op="placeholder")]
    batch = {symbol for value in values if isinstance(value, Tensor) for symbol in _symbols(value.shape[:1])}
    for node in graph.nodes:
        value = node.meta.get("val")
        notes: dict[str, Any] = {"shape": None, "dtype": getattr(value, "dtype", None), "owner": _owner(node)}
        if isinstance(value, Tensor):
            notes["shape"] = tuple(_at_traced_size(size, batch) for size in value.shape)
            notes["free"] = bool(_symbols(value.shape[2:]) - batch)
        elif isinstance(value, (int, torch.SymInt)) and node.op == "call_function":
            notes["size"] = _at_traced_size(value, batch)
        node.meta = notes


def _owner(node: fx.Node) -> str:
    """The innermost module of the user's model that made this call."""
    stack = node.meta.get("nn_module_stack") or {}
    names = [str(path) for path, _kind in stack.values()]
    return names[-1].split("@")[0] if names else ""


def _is_free(size: Any) -> bool:
    """Whether it is a formula; torch keeps what turned out to be a number as a symbol, too."""
    return bool(_symbols([size]))


def _symbols(sizes: Sequence[Any]) -> set[sympy.Symbol]:
    return {symbol for size in sizes if isinstance(size, torch.SymInt) for symbol in size.node.expr.free_symbols}


def _at_traced_size(size: Any, batch: set[sympy.Symbol]) -> int | None:
    if not isinstance(size, torch.SymInt):
        return int(size)
    return None if _symbols([size]) & batch or size.node.hint is None else int(size.node.hint)


# -- checks of the inputs


def add_input_checks(graph: fx.Graph, watch: SizeWatch | None) -> None:
    """Puts the checks after the inputs: their shapes, and with a watch the conditions on free sizes. Reads torch's notes."""
    inputs = graph.find_nodes(op="placeholder")
    images = [node for node in inputs if isinstance(node.meta.get("val"), Tensor) and node.meta["val"].dim() == 4]
    with graph.inserting_before(inputs[-1].next):
        for node in inputs:
            value, name = node.meta.get("val"), str(node.target)
            if isinstance(value, Tensor):
                shape = tuple(None if _is_free(size) else int(size) for size in value.shape)
                graph.call_function(require_shape, (node, name, shape))
            else:
                graph.call_function(require_value, (node, name, value))
        if watch is not None:
            _require_free(images, watch)
            batched = [node for node in inputs if isinstance(node.meta.get("val"), Tensor) and node.meta["val"].dim()]
            sizes = _symbol_sides(images, _SIDES)
            writer = FormulaWriter(graph, _symbol_sides(batched, (_BATCH,)) | sizes, sizes)
            _add_conditions(graph, images, writer, watch)
    if watch is not None:
        _derive_sizes(graph, writer)


def _add_conditions(graph: fx.Graph, images: list[fx.Node], writer: FormulaWriter, watch: SizeWatch) -> None:
    """Sizes of one input that follow from another's, and what `forward()` decided by a size."""
    names = {symbol: sympy.Symbol(_side_name(images, *place)) for symbol, place in writer.sides.items()}

    def written(formula: sympy.Basic) -> str:
        return str(PythonPrinter().doprint(formula.xreplace(names)))

    for image, side, size in _sides(images):
        formula = size.node.expr if _is_free(size) else None
        if formula is not None and writer.sides.get(formula) != (image, side) and writer.covers(formula.free_symbols):
            same: Any = writer.read(image, side) == writer.write(formula)
            words = f"{_side_name(images, image, side)} is {written(formula)}"
            graph.call_function(require_size, (same.node, image, str(image.target), words))
    places: dict[sympy.Basic, str] = {}
    for decision in watch.decisions():
        held = watch.environment.replace(decision.held)
        by_size = (
            held.free_symbols & writer.free_sizes
        )  # how the batch alone decides is seen when lifted and model are compared
        if not decision.within_operator and by_size and writer.covers(held.free_symbols):
            places.setdefault(held, f": {decision.place} decides by it" if decision.place else "")
    for held, place in places.items():
        args = (writer.write(held).node, images[0], str(images[0].target), f"{written(held)}{place}")
        graph.call_function(require_size, args)


def _derive_sizes(graph: fx.Graph, writer: FormulaWriter) -> None:
    """Sizes that are read from inner maps are computed from the inputs' sizes instead: removing layers moves such maps."""
    for node in list(graph.nodes):
        value = node.meta.get("val")
        formula = value.node.expr if _is_free(value) else None
        reads = operator_name(node.target) in _SIZE_READERS
        if formula is None or not writer.covers(formula.free_symbols) or (reads and node.args[0].op == "placeholder"):
            continue
        if not reads:
            writer.written.setdefault(formula, fx.Proxy(node, writer.tracer))
            continue
        with graph.inserting_before(node):
            derived = writer.write(formula)
        node.replace_all_uses_with(derived.node)
        graph.erase_node(node)


def _sides(images: list[fx.Node], sides: Sequence[int] = _SIDES) -> list[tuple[fx.Node, int, Any]]:
    return [(image, side, image.meta["val"].shape[side]) for image in images for side in sides]


def _symbol_sides(images: list[fx.Node], sides: Sequence[int]) -> dict[sympy.Symbol, Side]:
    """The first input that has a symbol as one of these sides, by symbol."""
    free = [(size.node.expr, (image, side)) for image, side, size in _sides(images, sides) if _is_free(size)]
    return {formula: place for formula, place in reversed(free) if formula.is_Symbol}


def _side_name(images: list[fx.Node], image: fx.Node, side: int) -> str:
    """N, H and W; of a further input with its name."""
    return _NAMES[side] if image is images[0] else f"{image.target}.{_NAMES[side]}"


def _require_free(images: list[fx.Node], watch: SizeWatch) -> None:
    """Refuses a capture in which a size that was to be free is a number: says what fixed it."""
    batched = [image for image in images if _is_free(image.meta["val"].shape[0])]
    wide = [(image, side, size) for image, side, size in _sides(batched) if _is_free(size) or size > 1]
    if not wide:
        raise TraceError(
            "free_size: no input has a height and a width; pass a batch of images, such as torch.randn(2, 3, 224, 224)"
        )
    fixed = [(image, side, size) for image, side, size in wide if not _is_free(size)]
    if fixed:
        image, side, size = fixed[0]
        numbers = {symbol for symbol, value in watch.environment.replacements.items() if value.is_number}
        deciding = (
            one for one in watch.decisions() if isinstance(one.held, sympy.Eq) and one.held.free_symbols & numbers
        )
        place = next((one.place for one in deciding if one.place), "the network, which was traced with that size")
        raise TraceError(
            f"free_size: {_NAMES[side]} of input '{image.target}' is fixed to {size} by {place}; "
            "compute it from the input's shape, or trace without free_size"
        )
