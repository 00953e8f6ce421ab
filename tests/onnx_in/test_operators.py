"""Every row of the table of ONNX operators, in a file of its own, against onnxruntime."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

import layermerge as lm
from layermerge.errors import ModelError
from layermerge.onnx_in.operators import TABLE
from onnx_files import answers, graph_file

RANDOM = np.random.default_rng(0)
MAP = ("N", 4, 6, 6)


def floats(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


@dataclass(frozen=True)
class Case:
    """A node: its further inputs, which are constants, its attributes, the shape of its input and the version of operators."""

    kind: str
    constants: tuple[Any, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    shape: tuple[Any, ...] = MAP
    opset: int = 18
    positive: bool = False
    outputs: int = 1

    def __str__(self) -> str:
        said = [f"{key}={value}" for key, value in self.attributes.items()]
        return " ".join([f"{self.kind}-{self.opset}", *said, *(str(np.shape(each)) for each in self.constants)])


def case(kind: str, *constants: Any, **more: Any) -> Case:
    own = {key: more.pop(key) for key in ("shape", "opset", "positive", "outputs") if key in more}
    return Case(kind, constants, more, **own)


KERNEL = {"kernel_shape": [3, 3], "strides": [2, 2]}
CASES = [
    *(
        case(kind)
        for kind in (
            "Relu",
            "Sigmoid",
            "HardSigmoid",
            "Elu",
            "Celu",
            "Selu",
            "Softplus",
            "Softsign",
            "Tanh",
            "LeakyRelu",
            "HardSwish",
            "ThresholdedRelu",
            "Softmax",
            "LogSoftmax",
            "Abs",
            "Neg",
            "Exp",
            "Erf",
            "Sign",
            "Sin",
            "Cos",
            "Atan",
            "Round",
            "Floor",
            "Ceil",
            "Identity",
            "Flatten",
            "Transpose",
            "GlobalAveragePool",
            "GlobalMaxPool",
            "LpNormalization",
        )
    ),
    *(case(kind, positive=True) for kind in ("Log", "Sqrt", "Reciprocal")),
    case("Gelu", opset=20),
    case("Gelu", opset=20, approximate="tanh"),
    case("Mish"),
    case("Selu", alpha=1.5, gamma=1.2),
    case("HardSigmoid", alpha=1 / 6, beta=0.5),
    case("LeakyRelu", alpha=0.2),
    case("Clip", np.float32(0), np.float32(6)),
    case("Clip", np.float32(-0.5), np.float32(0.7)),
    case("Clip", np.float32(0)),
    case("Clip", min=-1.0, max=0.5, opset=6),
    case("PRelu", floats(4, 1, 1)),
    case("PRelu", floats(1)),
    case("Dropout", opset=11),
    case("Cast", to=TensorProto.DOUBLE),
    # joins of two
    *(case(kind, floats(1, 4, 1, 1)) for kind in ("Add", "Sub", "Mul", "Div", "Min", "Max", "Sum", "Mean")),
    *(case(kind, np.float32(0.3)) for kind in ("Add", "Sub", "Mul", "Div", "Min", "Max")),
    case("Pow", np.float32(2)),
    case("Pow", np.float32(0.5), positive=True),
    case("Mod", np.float32(0.7), fmod=1),
    # layers
    case("Conv", floats(8, 4, 3, 3), pads=[1, 1, 1, 1]),
    case("Conv", floats(8, 2, 3, 3), floats(8), group=2, strides=[2, 1]),
    case("Conv", floats(8, 4, 3, 3), pads=[0, 0, 1, 2]),
    case("Conv", floats(8, 4, 2, 3), auto_pad="SAME_UPPER"),
    case("Conv", floats(8, 4, 3, 3), auto_pad="SAME_LOWER", strides=[2, 2]),
    case("Conv", floats(8, 4, 3, 3), auto_pad="VALID"),
    case("Conv", floats(8, 4, 3, 3), dilations=[2, 2]),
    case("Conv", floats(5, 4, 3), shape=("N", 4, 9)),
    case("ConvTranspose", floats(4, 3, 2, 2), floats(3), strides=[2, 2]),
    case("ConvTranspose", floats(4, 3, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]),
    case("BatchNormalization", floats(4), floats(4), floats(4), abs(floats(4)) + 0.5, epsilon=1e-3),
    case("BatchNormalization", floats(4), floats(4), floats(4), abs(floats(4)) + 0.5, opset=9, shape=("N", 4)),
    case("InstanceNormalization", floats(4), floats(4)),
    case("LayerNormalization", floats(6), floats(6)),
    case("LayerNormalization", floats(6, 6), axis=-2),
    case("GroupNormalization", floats(4), floats(4), num_groups=2, opset=21),
    case("Gemm", floats(5, 8), floats(8), shape=("N", 5)),
    case("Gemm", floats(8, 5), alpha=0.5, transB=1, shape=("N", 5)),
    case("MatMul", floats(6, 3)),
    case("MatMul", floats(4, 6, 3)),
    case("Einsum", floats(6, 3), equation="nchw,wd->nchd"),
    # windows
    case("MaxPool", **KERNEL),
    case("MaxPool", **KERNEL, pads=[1, 1, 1, 1]),
    case("MaxPool", **KERNEL, pads=[0, 0, 1, 1]),
    case("MaxPool", **KERNEL, auto_pad="SAME_UPPER"),
    case("MaxPool", kernel_shape=[2, 2], dilations=[2, 2]),
    case("MaxPool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    case("AveragePool", **KERNEL),
    case("AveragePool", **KERNEL, pads=[1, 1, 1, 1]),
    case("AveragePool", **KERNEL, pads=[1, 1, 1, 1], count_include_pad=1),
    case("AveragePool", **KERNEL, pads=[0, 0, 1, 1]),
    case("AveragePool", kernel_shape=[2, 2], auto_pad="SAME_UPPER"),
    case("LRN", size=3, alpha=0.01),
    case("DepthToSpace", blocksize=2),
    case("DepthToSpace", blocksize=2, mode="CRD"),
    case("SpaceToDepth", blocksize=2),
    case("Pad", ints(0, 0, 1, 2, 0, 0, 0, 1)),
    case("Pad", ints(0, 0, 1, 2, 0, 0, 0, 1), mode="reflect"),
    case("Pad", ints(0, 0, 1, 2, 0, 0, 0, 1), np.float32(1.5)),
    case("Pad", ints(0, 0, 1, 0, 0, 0, 0, 1), mode="edge"),
    case("Pad", pads=[0, 0, 1, 1, 0, 0, 1, 1], opset=10),
    *(
        case("Resize", floats(0), np.array([1, 1, 2, 2], np.float32), **how)
        for how in (
            {"mode": "nearest"},
            {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
            {"mode": "linear"},
            {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
            {"mode": "cubic"},
        )
    ),
    case("Resize", floats(0), np.array([], np.float32), ints(2, 4, 9, 12), mode="linear", shape=(2, 4, 6, 6)),
    case("Upsample", np.array([1, 1, 2, 2], np.float32), mode="nearest", opset=9),
    # sums
    *(case(f"Reduce{how}", axes=[2, 3], opset=13) for how in ("Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare")),
    case("ReduceMean", ints(-1), opset=18, keepdims=0),
    case("ReduceSum", ints(1)),
    case("ReduceSum"),
    # shapes
    case("Reshape", ints(0, -1)),
    case("Squeeze", ints(1), shape=("N", 1, 6)),
    case("Unsqueeze", ints(1, -1), shape=("N", 6)),
    case("Unsqueeze", axes=[2], opset=11, shape=("N", 6)),
    case("Squeeze", axes=[1], opset=11, shape=("N", 1, 6)),
    case("Expand", ints(1, 4, 6, 6), shape=("N", 4, 1, 1)),
    case("Tile", ints(1, 2, 1, 1)),
    case("Transpose", perm=[0, 2, 3, 1]),
    case("Flatten", axis=2),
    case("Slice", ints(1, 0), ints(3, -1), ints(1, 2)),
    case("Slice", ints(-1), ints(-9), ints(3), ints(-2)),
    case("Slice", ints(0), ints(2**63 - 1), ints(2), ints(2)),
    case("Slice", starts=[1], ends=[3], axes=[2], opset=9),
    case("Gather", np.int64(1), axis=2),
    case("Gather", ints(2, -1, 0), axis=1),
    case("Gather", np.array([[0, 1], [2, 3]]), axis=3),
    case("Split", ints(1, 3), axis=1, outputs=2),
    case("Split", axis=1, outputs=2, opset=13),
    case("Split", axis=1, outputs=3, num_outputs=3, shape=("N", 5, 6)),
    case("Softmax", axis=1),
    case("Softmax", opset=11, axis=1),
    case("CumSum", np.int64(1)),
    case("Concat", floats(2, 4, 6, 6), axis=0),
]
JOINED = {
    "And": "Xor",
    "Or": "And",
    "Xor": "Or",
    "Equal": "Not",
    "Greater": "And",
    "GreaterOrEqual": "And",
    "Less": "And",
    "LessOrEqual": "And",
    "Not": "And",
    "Where": "Where",
    "ArgMax": "ArgMax",
}
"""Rows that give no floats, which whole networks use within: tested below."""
OF_SHAPES = {"Shape", "Size", "ConstantOfShape", "Range", "Swish"}
"""Tested in networks, below and in test_patterns.py."""


def node(given: Case) -> Any:
    names = [f"c{place}" for place in range(len(given.constants))]
    gives = [f"y{place}" for place in range(given.outputs)]
    return helper.make_node(given.kind, ["x", *names], gives, name="tested", **given.attributes)


@pytest.mark.parametrize("given", CASES, ids=str)
def test_a_row_computes_what_onnxruntime_computes(given: Case, tmp_path: Path) -> None:
    constants = {f"c{place}": value for place, value in enumerate(given.constants)}
    gives = TensorProto.DOUBLE if given.attributes.get("to") == TensorProto.DOUBLE else TensorProto.FLOAT
    file = graph_file(tmp_path / "a.onnx", [node(given)], constants, {"x": given.shape}, given.opset, gives=gives)
    shape = given.shape[1:]
    if given.positive or given.kind == "Concat" or (given.kind == "Pow" and given.positive):
        # Read faithfully on any numbers, but compared here only where it is one.
        file = behind_abs(file, given, constants)
    network = lm.from_onnx(file, input_shape=shape if given.kind != "Resize" or given.shape[0] == "N" else None)
    x = torch.randn(2, *shape).abs() + 0.1 if given.positive else torch.randn(2, *shape)
    with torch.no_grad():
        mine = network(x)
    for expected, actual in zip(answers(file, x), mine if isinstance(mine, tuple) else (mine,), strict=True):
        assert tuple(expected.shape) == tuple(actual.shape)
        scale = max(abs(expected).max(), 1e-6)
        assert abs(expected - actual.numpy()).max() / scale < 1e-5


def behind_abs(file: Path, given: Case, constants: dict[str, Any]) -> Path:
    """The same with what it takes made positive before it; a batch that is joined with a constant is joined along channels."""
    before = helper.make_node("Abs", ["in"], ["near"])
    far = helper.make_node("Add", ["near", "some"], ["x"])
    last = node(given)
    if given.kind == "Concat":
        spread = helper.make_node("Mul", ["in", "c0"], ["x"])
        last = helper.make_node("Concat", ["x", "in"], ["y0"], axis=1)
        return graph_file(file, [spread, last], {"c0": floats(1, 4, 1, 1)}, {"in": given.shape}, given.opset)
    more = {**constants, "some": np.float32(0.1)}
    return graph_file(file, [before, far, last], more, {"in": given.shape}, given.opset)


def test_every_row_has_a_case() -> None:
    tested = {given.kind for given in CASES} | JOINED.keys() | OF_SHAPES
    assert TABLE.keys() <= tested
    assert tested - TABLE.keys() == {"Upsample"}, "which the converter turns into Resize"


# -- rows that need others around them


def test_comparisons_and_choices(tmp_path: Path) -> None:
    n = helper.make_node
    nodes = [
        n("Greater", ["x", "half"], ["a"]),
        n("Less", ["x", "channel"], ["b"]),
        n("And", ["a", "b"], ["c"]),
        n("GreaterOrEqual", ["x", "channel"], ["d"]),
        n("LessOrEqual", ["x", "half"], ["e"]),
        n("Xor", ["d", "e"], ["f"]),
        n("Or", ["c", "f"], ["g"]),
        n("Not", ["g"], ["h"]),
        n("ArgMax", ["x"], ["i"], axis=1),
        n("Cast", ["i"], ["j"], to=1),
        n("Equal", ["j", "one"], ["k"]),
        n("Or", ["h", "k"], ["l"]),
        n("Where", ["l", "x", "channel"], ["y"]),
    ]
    constants = {"half": np.float32(0.5), "one": np.float32(1), "channel": floats(1, 4, 1, 1)}
    file = graph_file(tmp_path / "a.onnx", nodes, constants)
    x = torch.randn(3, 4, 6, 6)
    assert np.array_equal(answers(file, x)[0], lm.from_onnx(file)(x).numpy())


def test_sizes_are_computed_where_they_are_free(tmp_path: Path) -> None:
    """A network that reads its own shape: what exporters write for flatten, upsample and attention."""
    n = helper.make_node
    nodes = [
        n("Conv", ["x", "w"], ["m"], pads=[1, 1, 1, 1]),
        n("Shape", ["m"], ["s"]),
        n("Gather", ["s", "zero"], ["batch"], axis=0),
        n("Slice", ["s", "two", "four"], ["hw"]),
        n("Unsqueeze", ["batch", "first"], ["b1"]),
        n("Mul", ["hw", "twos"], ["h2w2"]),
        n("Concat", ["b1", "four", "h2w2"], ["wanted"], axis=0),
        n("Resize", ["m", "", "", "wanted"], ["big"], mode="nearest"),
        n("Size", ["s"], ["rank"]),
        n("Unsqueeze", ["rank", "first"], ["r1"]),
        n("Sub", ["r1", "five"], ["minus"]),
        n("Concat", ["b1", "minus"], ["flat"], axis=0),
        n("Reshape", ["big", "flat"], ["y"]),
    ]
    constants = {
        "w": floats(4, 4, 3, 3),
        "zero": np.int64(0),
        "first": ints(0),
        "two": ints(2),
        "four": ints(4),
        "twos": ints(2, 2),
        "five": ints(5),
    }
    file = graph_file(tmp_path / "a.onnx", nodes, constants, {"x": ("N", 4, "H", "W")})
    network = lm.from_onnx(file)
    traced = lm.trace(network, torch.randn(2, 4, 10, 12), free_size=True)
    for shape in ((1, 4, 9, 7), (3, 4, 16, 5)):
        x = torch.randn(*shape)
        expected = answers(file, x)[0]
        assert np.allclose(expected, network(x).detach().numpy(), atol=1e-5)
        assert np.allclose(expected, traced.module(x).detach().numpy(), atol=1e-5)


def test_what_is_constant_is_computed_when_the_file_is_read(tmp_path: Path) -> None:
    n = helper.make_node
    filled = helper.make_tensor("v", TensorProto.FLOAT, [1], [0.5])
    nodes = [
        n("Constant", [], ["shape"], value_ints=[8, 4, 1, 1]),
        n("ConstantOfShape", ["shape"], ["plain"], value=filled),
        n("Range", ["zero", "eight", "one"], ["steps"]),
        n("Cast", ["steps"], ["scale"], to=1),
        n("Reshape", ["scale", "column"], ["tall"]),
        n("Mul", ["plain", "tall"], ["w"]),
        n("Conv", ["x", "w"], ["y"]),
    ]
    constants = {"zero": np.int64(0), "eight": np.int64(8), "one": np.int64(1), "column": ints(8, 1, 1, 1)}
    file = graph_file(tmp_path / "a.onnx", nodes, constants)
    network = lm.from_onnx(file)
    assert len(network.steps) == 1
    x = torch.randn(2, 4, 6, 6)
    assert np.allclose(answers(file, x)[0], network(x).detach().numpy(), atol=1e-6)


# -- forms that are refused

REFUSED = [
    (
        case("LSTM", floats(1, 8, 4), floats(1, 8, 2), hidden_size=2, shape=(3, "N", 4)),
        "operator LSTM of node 'tested' cannot be read",
    ),
    (case("TopK", ints(2), outputs=2), "operator TopK of node 'tested' cannot be read"),
    (case("ArgMax", axis=1, select_last_index=1), "it takes the last of equal values"),
    (case("CumSum", np.int64(1), reverse=1), "its sums are exclusive or reversed"),
    (
        case(
            "Resize",
            floats(0),
            np.array([1, 1, 2, 2], np.float32),
            mode="linear",
            coordinate_transformation_mode="asymmetric",
        ),
        "it resizes by linear from coordinates that are asymmetric",
    ),
    (case("Resize", floats(0), np.array([1, 2, 2, 2], np.float32)), "it resizes batch or channels"),
    (case("Pad", ints(0, 1, 0, 0, 0, 0, 0, 0), mode="reflect"), "it pads batch or channels in mode reflect"),
    (case("ConvTranspose", floats(4, 3, 2, 2), pads=[0, 0, 1, 1], strides=[2, 2]), "it pads by the size of its output"),
    (case("Slice", ints(0), ints(4), ints(1), ints(0)), "it slices by steps of 0"),
    (case("Squeeze", ints(1)), r"it squeezes axes \[1\] of a tensor of shape"),
    (case("Cast", to=TensorProto.FLOAT16), "a cast to ONNX's type 10 is not supported"),
    (case("Conv", floats(8, 4, 3), pads=[1, 1]), "its weights have 3 axes, its input 4"),
]


@pytest.mark.parametrize(("given", "words"), REFUSED, ids=[str(given) for given, _ in REFUSED])
def test_what_cannot_be_read_names_its_operator(given: Case, words: str, tmp_path: Path) -> None:
    constants = {f"c{place}": value for place, value in enumerate(given.constants)}
    file = graph_file(tmp_path / "a.onnx", [node(given)], constants, {"x": given.shape}, given.opset)
    with pytest.raises(ModelError, match=words) as caught:
        lm.from_onnx(file)
    assert given.kind in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_second_output_of_a_pooling_is_refused(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MaxPool", ["x"], ["y", "where"], name="pool", kernel_shape=[2, 2]),
        helper.make_node("Cast", ["where"], ["z"], to=1),
    ]
    with pytest.raises(ModelError, match="operator MaxPool of node 'pool' cannot be read: its output 'where' is used"):
        lm.from_onnx(graph_file(tmp_path / "a.onnx", nodes))
