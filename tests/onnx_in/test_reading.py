"""Files that are damaged, huge or made to harm: one line each, nothing read outside, no memory taken for what a file claims."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import layermerge as lm
from layermerge.errors import ModelError
from layermerge.onnx_in import reading
from onnx_files import answers, graph_file

WEIGHT = np.random.default_rng(0).standard_normal((8, 4, 3, 3)).astype(np.float32)
CONV = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1, 1, 1, 1])


def plain(path: Path) -> Path:
    return graph_file(path, [CONV], {"w": WEIGHT})


def changed(path: Path, change: Callable[[Any], Any]) -> Path:
    """A sound file, with one thing done to it."""
    model = onnx.load(plain(path))
    change(model)
    path.write_bytes(model.SerializeToString())
    return path


def external(path: Path, location: str, **entries: str) -> Path:
    def change(model: Any) -> None:
        (weight,) = model.graph.initializer
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        for key, value in {"location": location, **entries}.items():
            weight.external_data.add(key=key, value=value)

    return changed(path, change)


@contextmanager
def little_memory(more: int = 3 << 30) -> Iterator[None]:
    """What is taken beyond what this process has reserved already fails."""
    reserved = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (reserved + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def refused(path: Path) -> str:
    with little_memory(), pytest.raises(ModelError) as caught:
        lm.from_onnx(path)
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 500
    return said


# -- files that are not whole, or not ONNX


def test_what_is_not_a_file_of_onnx(tmp_path: Path) -> None:
    whole = plain(tmp_path / "whole.onnx").read_bytes()
    for name, content, words in (
        ("cut.onnx", whole[: len(whole) // 2], "is truncated or not an ONNX file"),
        ("text.onnx", b"import os\nos.system('true')\n", "is truncated or not an ONNX file"),
        ("pickle.onnx", b"\x80\x04cos\nsystem\n(S'true'\ntR.", "is truncated or not an ONNX file"),
        ("empty.onnx", b"", "does not hold a network"),
    ):
        (tmp_path / name).write_bytes(content)
        assert words in refused(tmp_path / name)
    assert "is a folder" in refused(tmp_path)
    assert "does not exist" in refused(tmp_path / "none.onnx")
    os.mkfifo(tmp_path / "pipe.onnx")
    assert "is not a file" in refused(tmp_path / "pipe.onnx")


def test_a_file_cut_anywhere_is_one_line(tmp_path: Path) -> None:
    whole = plain(tmp_path / "whole.onnx").read_bytes()
    for length in range(1, len(whole), 41):
        (tmp_path / "cut.onnx").write_bytes(whole[:length])
        refused(tmp_path / "cut.onnx")


def test_bytes_changed_anywhere_are_read_or_one_line(tmp_path: Path) -> None:
    whole, random = plain(tmp_path / "whole.onnx").read_bytes(), np.random.default_rng(0)
    said: list[str] = []
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[random.integers(60)] = random.integers(256)  # names, types and attributes; weights come behind
        damaged[-random.integers(1, 80)] = random.integers(256)
        (tmp_path / "damaged.onnx").write_bytes(bytes(damaged))
        try:
            with little_memory():
                lm.from_onnx(tmp_path / "damaged.onnx")
        except ModelError as error:
            said.append(str(error))
    assert len(said) > 20
    assert not any("\n" in line for line in said)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "huge.onnx"
    with file.open("wb") as stream:
        stream.truncate(3 << 30)  # a hole on the disk
    assert "3,221,225,472 bytes; files of at most 2,147,483,647 are read" in refused(file)


# -- weights in other files


def test_weights_beside_the_file_are_read(tmp_path: Path) -> None:
    file = external(tmp_path / "a.onnx", "data/w.bin", offset="8", length=str(WEIGHT.nbytes))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(b"ignored." + WEIGHT.tobytes())
    x = torch.randn(2, 4, 6, 6)
    assert np.allclose(lm.from_onnx(file)(x).detach().numpy(), answers(file, x)[0], atol=1e-5)


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("../w.bin", "outside the file's folder; nothing is read there"),
        ("data/../../w.bin", "outside the file's folder; nothing is read there"),
        ("link.bin", "outside the file's folder; nothing is read there"),
        ("linked/w.bin", "outside the file's folder; nothing is read there"),
        ("/etc/hostname", "which is not a path within the file's folder"),
        ("", "which is not a path within the file's folder"),
        ("a\0b", "which is not a path within the file's folder"),
        ("none.bin", "which is not there; put it beside the file"),
        ("data", "which is not there; put it beside the file"),
    ],
)
def test_nothing_outside_the_folder_is_read(location: str, words: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "data").mkdir(parents=True)
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    (folder / "linked").symlink_to(tmp_path)
    assert words in refused(external(folder / "a.onnx", location))


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"offset": "4"}, "ends at byte 1,156 of 'w.bin', which has 1,152"),
        ({"length": "9999999999999"}, "ends at byte 9,999,999,999,999 of 'w.bin'"),
        ({"offset": "-8"}, "ends at byte 1,144 of 'w.bin'"),
        ({"length": "many"}, "does not say where its values are"),
        ({"length": "400"}, "has 100 values where its shape [8, 4, 3, 3] says 288"),
    ],
)
def test_places_in_other_files_are_checked(entries: dict[str, str], words: str, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    assert words in refused(external(tmp_path / "a.onnx", "w.bin", **entries))


def test_weights_in_other_files_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    file = external(tmp_path / "a.onnx", "w.bin")
    monkeypatch.setattr(reading, "MOST_BYTES", file.stat().st_size + WEIGHT.nbytes - 1)
    assert "bytes together; no more are read" in refused(file)


# -- shapes that are only claimed


def claimed(*dims: int) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        del model.graph.initializer[0].dims[:]
        model.graph.initializer[0].dims.extend(dims)

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (claimed(1 << 20, 1 << 20), "has 288 values where its shape [1048576, 1048576] says 1,099,511,627,776"),
        (claimed(-8, 4, 3, 3), "has a negative size"),
        (lambda model: setattr(model.graph.initializer[0], "data_type", 99), "is of a type that cannot be read"),
        (lambda model: setattr(model.graph.initializer[0], "data_type", TensorProto.STRING), "holds text"),
        (lambda model: setattr(model.graph.initializer[0], "data_type", TensorProto.FLOAT16), "has 576 values"),
    ],
)
def test_weights_have_as_many_values_as_they_say(change: Any, words: str, tmp_path: Path) -> None:
    assert words in refused(changed(tmp_path / "a.onnx", change))


def ints(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


N = helper.make_node
BOMBS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "a constant of an absurd shape": (
        [N("ConstantOfShape", ["s"], ["c"]), N("Add", ["x", "c"], ["y"])],
        {"s": ints(1 << 20, 1 << 20)},
    ),
    "an absurd constant of ones": (
        [
            N("ConstantOfShape", ["s"], ["c"], value=helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0])),
            N("Add", ["x", "c"], ["y"]),
        ],
        {"s": ints(1 << 16, 1 << 16)},
    ),
    "an absurd expansion by sizes": (
        [
            N("Shape", ["x"], ["s"]),
            N("Mul", ["s", "m"], ["t"]),
            N("Expand", ["c", "t"], ["d"]),
            N("Mul", ["d", "d"], ["e"]),
            N("ReduceSum", ["e"], ["y"]),
        ],
        {"c": np.zeros((1, 1, 1, 1), np.float32), "m": ints(1 << 10, 1 << 10, 1 << 10, 1)},
    ),
    "an absurd expansion": ([N("Expand", ["x", "s"], ["y"])], {"s": ints(1 << 24, 1, 1, 1, 1)}),
    "an absurd constant by expansion": (
        [N("Expand", ["c", "s"], ["d"]), N("Add", ["x", "d"], ["y"])],
        {"c": np.float32(1), "s": ints(1 << 40)},
    ),
    "absurd repetition": ([N("Tile", ["x", "s"], ["y"])], {"s": ints(1, 1 << 15, 1 << 10, 1)}),
    "an absurd range": (
        [N("Range", ["a", "b", "c"], ["d"]), N("Cast", ["d"], ["e"], to=1), N("Add", ["x", "e"], ["y"])],
        {"a": np.int64(0), "b": np.int64(1 << 40), "c": np.int64(1)},
    ),
    "absurd padding": ([N("Pad", ["x", "p"], ["y"])], {"p": ints(0, 0, 0, 0, 0, 0, 1 << 20, 1 << 20)}),
    "an absurd size": ([N("Resize", ["x", "", "", "s"], ["y"])], {"s": ints(2, 4, 1 << 20, 1 << 20)}),
    "an absurd scale": ([N("Resize", ["x", "", "s"], ["y"])], {"s": np.array([1, 1, 1e6, 1e6], np.float32)}),
    "an absurd sum": (
        [N("Add", ["a", "b"], ["c"]), N("Add", ["x", "c"], ["y"])],
        {"a": np.zeros((1 << 16, 1), np.float32), "b": np.zeros((1, 1 << 16), np.float32)},
    ),
    "absurd padding of a conv": (
        [N("Conv", ["x", "w"], ["y"], pads=[1 << 20, 1 << 20, 1 << 20, 1 << 20])],
        {"w": WEIGHT},
    ),
    "absurdly many sizes": (
        [
            N("Shape", ["x"], ["s"]),
            N("Mul", ["s", "m"], ["t"]),
            N("ConstantOfShape", ["t"], ["u"]),
            N("Cast", ["u"], ["c"], to=1),
            N("Add", ["x", "c"], ["y"]),
        ],
        {"m": ints(1 << 20, 1 << 20, 1, 1)},
    ),
    "doubled thirty times": (
        [N("Concat", [f"v{n}", f"v{n}"], [f"v{n + 1}"], axis=1) for n in range(30)],
        {"v0": np.zeros((1, 1 << 10), np.float32)},
    ),
    "doubled thirty times, not constant": (
        [N("Identity", ["x"], ["v0"]), *(N("Concat", [f"v{n}", f"v{n}"], [f"v{n + 1}"], axis=1) for n in range(30))],
        {},
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_no_memory_is_taken_for_absurd_shapes(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    nodes, constants = BOMBS[name]
    if nodes[-1].output[0] != "y" and name == "doubled thirty times":
        nodes = [*nodes, N("Add", ["x", nodes[-1].output[0]], ["y"])]
    file = graph_file(tmp_path / "a.onnx", nodes, constants)
    said = refused(file)
    words = ("at most 536,870,912 values are computed", "constants of more than 134,217,728", "more than 4,096 sizes")
    assert any(each in said for each in words), said
    assert capfd.readouterr() == ("", "")


def test_an_absurd_input_is_refused(tmp_path: Path) -> None:
    file = graph_file(tmp_path / "a.onnx", [CONV], {"w": WEIGHT}, {"x": ("N", 4, 1 << 20, 1 << 20)})
    assert "at most 536,870,912 values are computed" in refused(file)
    with pytest.raises(ModelError, match="at most 536,870,912 values are computed"):
        lm.from_onnx(
            graph_file(tmp_path / "b.onnx", [CONV], {"w": WEIGHT}, {"x": ("N", 4, "H", "W")}), (4, 1 << 20, 1 << 20)
        )


# -- graphs that are none


def test_graphs_that_cannot_be_run_in_order(tmp_path: Path) -> None:
    add = helper.make_node("Add", ["x", "later"], ["first"], name="add")
    relu = helper.make_node("Relu", ["first"], ["later"], name="relu")
    file = tmp_path / "a.onnx"
    assert "operator Add of node 'add' reads 'later', which is computed from it" in refused(
        graph_file(file, [add, relu])
    )
    itself = helper.make_node("Add", ["x", "y"], ["y"], name="itself")
    assert "operator Add of node 'itself' reads 'y', which is computed from it" in refused(graph_file(file, [itself]))
    nothing = helper.make_node("Add", ["x", "none"], ["y"])
    assert "operator Add of node 'y' reads 'none', which nothing gives" in refused(graph_file(file, [nothing]))
    twice = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"], name="again")]
    assert "operator Neg of node 'again' gives 'y', which is given before" in refused(graph_file(file, twice))
    lost = changed(file, lambda model: setattr(model.graph.output[0], "name", "lost"))
    assert "nothing gives the output 'lost'" in refused(lost)


def test_loops_functions_and_other_domains_are_refused(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["z"])], "inner", [], [helper.make_empty_tensor_value_info("z")]
    )
    file = tmp_path / "a.onnx"
    chosen = helper.make_node("If", ["c"], ["y"], name="choice", then_branch=body, else_branch=body)
    looped = helper.make_node("Loop", ["n", "c", "x"], ["y"], name="again", body=body)
    constants = {"c": np.array(True), "n": np.int64(1 << 40)}
    for node, words in ((chosen, "operator If of node 'choice'"), (looped, "operator Loop of node 'again'")):
        model = helper.make_model(
            helper.make_graph(
                [node],
                "outer",
                [helper.make_tensor_value_info("x", 1, ["N", 4, 6, 6])],
                [helper.make_tensor_value_info("y", 1, None)],
                [numpy_helper.from_array(value, name) for name, value in constants.items()],
            )
        )
        file.write_bytes(model.SerializeToString())
        assert f"{words} holds a graph of its own; control flow cannot be traced" in refused(file)
    theirs = changed(file, lambda model: setattr(model.graph.node[0], "domain", "com.example"))
    assert "operator Conv of node 'conv' is in the domain 'com.example'" in refused(theirs)

    def define(model: Any) -> None:
        model.functions.add(name="Mine", domain="local")

    assert "defines operators of its own, such as 'Mine'" in refused(changed(file, define))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model: model.ClearField("opset_import"), "does not say which version of the standard operators"),
        (lambda model: model.graph.ClearField("input"), "reads 'x', which nothing gives"),
        (lambda model: model.graph.ClearField("output"), "has no outputs"),
        (
            lambda model: setattr(model.graph.node[0], "op_type", "Conv\n\x1b2"),
            "operator Conv  2 of node 'conv' cannot be read",
        ),
        (lambda model: setattr(model.graph.node[0].attribute[0], "name", "wrong"), "is not a valid ONNX file"),
        (lambda model: setattr(model.graph.input[0].type.tensor_type, "elem_type", 10), "is not a valid|is float16"),
        (
            lambda model: setattr(model.opset_import[0], "version", 999),
            "cannot be read|does not run|not a valid|from opset",
        ),
    ],
)
def test_files_that_say_too_little_or_too_much(change: Any, words: str, tmp_path: Path) -> None:
    said = refused(changed(tmp_path / "a.onnx", change))
    assert any(word in said for word in words.split("|")), said


def test_half_precision_is_refused(tmp_path: Path) -> None:
    cast = helper.make_node("Cast", ["h"], ["w"], to=1)
    file = graph_file(tmp_path / "a.onnx", [cast, CONV], {"h": WEIGHT.astype(np.float16)})
    assert "tensor 'h' is float16; export the network in float32" in refused(file)


def test_the_number_of_nodes_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = plain(tmp_path / "a.onnx")
    monkeypatch.setattr(reading, "MOST_NODES", 0)
    assert "has 1 nodes; at most 0 are read" in refused(file)
