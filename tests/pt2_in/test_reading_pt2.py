"""Reading .pt2 files: torch's own reader is the oracle for what a file computes; what would run code is refused."""

from __future__ import annotations

import json
import random
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import free_sizes
import layermerge as lm
import zoo
from agreement import call, same_bits, same_outputs, tensors
from layermerge.errors import ArtifactError, InputError
from layermerge.pt2_in.reading import from_pt2
from layermerge.pt2_in.sizes import Condition
from solutions import random_solution

NETWORKS = [
    "plain",
    "basic",
    "inverted",
    "unet",
    "time_shifted_block_conv_shortcut",
    "norms_of_every_kind",
    "explicit_same_padding",
    "two_inputs",
    "inputs_by_name",
    "dict_output",
]
SIDE = 12


def merged(name: str) -> Any:
    traced = zoo.traced(name)
    return lm.merge(lm.rewrite(traced, random_solution(lm.plan(traced), random.Random(3))).eval())


@pytest.mark.parametrize("name", NETWORKS)
def test_a_file_is_read_as_torch_reads_it(tmp_path: Path, name: str) -> None:
    network, inputs = merged(name), zoo.ZOO[name].inputs(2)
    file = lm.export(network, tmp_path / "net.pt2", inputs)
    read, theirs = from_pt2(file), torch.export.load(file)
    weights = theirs.state_dict
    assert dict.fromkeys(weights, True) == {
        name: torch.equal(tensor, weights[name]) for name, tensor in read.state_dict().items()
    }
    assert same_outputs(network, read, inputs)
    with torch.no_grad():
        assert len(tensors(call(theirs.module(), inputs))) == len(tensors(call(read, inputs)))


class Everything(nn.Module):
    """Several outputs of one operator, lists of tensors, scalars, dtypes, constants, and a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, padding=1)
        self.register_buffer("scale", torch.rand(1, 8, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Any:
        y = self.conv(x) * self.scale
        first, second = y.chunk(2, 1)
        most, where = first.flatten(2).max(-1)
        ramp = torch.arange(4, dtype=torch.float32).view(1, 4, 1, 1)
        return {"maps": [first + ramp, second.masked_fill(second < 0, float("-inf"))], "top": (most, where.float())}


def everything(folder: Path) -> tuple[nn.Module, Path]:
    torch.manual_seed(0)
    model, x = Everything().eval(), torch.randn(2, 4, SIDE, SIDE)
    program = torch.export.export(model, (x,), dynamic_shapes={"x": {0: torch.export.Dim.AUTO}})
    torch.export.save(program, folder / "net.pt2")
    return model, folder / "net.pt2"


def test_every_kind_of_argument_and_output(tmp_path: Path) -> None:
    model, file = everything(tmp_path)
    x = torch.randn(3, 4, SIDE, SIDE)
    read = from_pt2(file)
    answer, expected = read(x), model(x)
    assert answer.keys() == expected.keys()
    assert isinstance(answer["maps"], list)
    assert isinstance(answer["top"], tuple)
    assert same_bits(expected, answer) or torch.allclose(expected["maps"][0], answer["maps"][0], atol=1e-6)
    assert read.state_dict().keys() == model.state_dict().keys()


def test_another_size_is_refused(tmp_path: Path) -> None:
    _, file = everything(tmp_path)
    with pytest.raises(InputError, match="input 'x' is 4x8x8 but the network was traced with 4x12x12"):
        from_pt2(file)(torch.zeros(1, 4, 8, 8))


def test_a_network_of_free_size_stays_so(tmp_path: Path) -> None:
    traced = lm.trace(free_sizes.build("pyramid"), free_sizes.image(), free_size=True)
    network = lm.merge(lm.rewrite(traced, []))
    read = from_pt2(lm.export(network, tmp_path / "net.pt2", free_sizes.image()))
    assert read.free_size
    for image in (free_sizes.image(), free_sizes.image(40, 24)):
        assert same_outputs(network, read, image)


class Halved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] % 2:
            raise ValueError("odd")
        y: Tensor = self.conv(x)
        return y


def test_conditions_on_sizes_are_kept(tmp_path: Path) -> None:
    network = lm.merge(lm.rewrite(lm.trace(Halved().eval(), torch.randn(2, 3, 8, 8), free_size=True), []))
    read = from_pt2(lm.export(network, tmp_path / "net.pt2", torch.randn(2, 3, 8, 8)))
    assert read(torch.zeros(1, 3, 9, 10)).shape == (1, 3, 9, 10)
    with pytest.raises(InputError, match=r"are not what the network was exported for.*% 2"):
        read(torch.zeros(1, 3, 8, 9))


def test_what_is_read_can_be_traced_and_exported_again(tmp_path: Path) -> None:
    network, inputs = merged("basic"), zoo.ZOO["basic"].inputs(2)
    read = from_pt2(lm.export(network, tmp_path / "net.pt2", inputs))
    traced = lm.trace(read, inputs)
    assert [layer.name for layer in traced.layers] == [layer.name for layer in lm.trace(network, inputs).layers]
    lm.export(read, tmp_path / "again.onnx", inputs)


# -- files that would do harm


def edited(source: Path, target: Path, change: Callable[[str, bytes], bytes]) -> Path:
    """The archive with its entries changed."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return target


def with_program(source: Path, target: Path, change: Callable[[Any], None]) -> Path:
    def rewritten(name: str, content: bytes) -> bytes:
        if not name.endswith("models/model.json"):
            return content
        program = json.loads(content)
        change(program)
        return json.dumps(program).encode()

    return edited(source, target, rewritten)


def _target(name: str) -> Callable[[Any], None]:
    return lambda program: program["graph_module"]["graph"]["nodes"][0].update(target=name)


def _condition(text: str) -> Callable[[Any], None]:
    return lambda program: program.update(guards_code=[text])


def _rename_input(program: Any) -> None:
    text = json.dumps(program).replace('"name": "x"', '"name": "x=print(1)"')
    text = text.replace('"x": {"dtype"', '"x=print(1)": {"dtype"')
    program.clear()
    program.update(json.loads(text))


def _rename_weight(program: Any) -> None:
    program["graph_module"]["signature"]["input_specs"][0]["parameter"]["parameter_name"] = 'a"+print(1)+"'


def _name_argument(program: Any) -> None:
    program["graph_module"]["module_call_graph"][0]["signature"]["forward_arg_names"] = ["x=print(1)"]


def _unknown_argument(program: Any) -> None:
    program["graph_module"]["graph"]["nodes"][0]["inputs"][0]["arg"] = {"as_graph": {"name": "g"}}


def _expression(program: Any) -> None:
    sizes = program["graph_module"]["graph"]["tensor_values"]["x"]["sizes"]
    sizes[0] = {"as_expr": {"expr_str": "__import__('os').getcwd()", "hint": None}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_target("torch.os.system"), "calls 'torch.os.system', which is not an operator of torch on tensors"),
        (_target("torch.hub.load"), "calls 'torch.hub.load'"),
        (_target("torch.ops.aten.from_file.default"), "from_file"),
        (_target("torch.ops.aten.save.default"), "save"),
        (_target("torch.ops.aten.warn.default"), "warn"),
        (_target("torch.ops.aten.__class__.mro"), "not an operator"),
        (_target("_operator.attrgetter"), "not an operator"),
        (_condition("__import__('os').getcwd()"), "is not arithmetic on sizes"),
        (_condition("L['x'].size()[0] ** 99999 > 1"), "is not arithmetic on sizes"),
        (_condition("max(key=print)"), "is not arithmetic on sizes"),
        (_condition("print(1)"), "is not arithmetic on sizes"),
        (_condition("L['other'].size()[0] > 1"), "is not arithmetic on sizes"),
        (_condition("1 +"), "is not a condition on sizes"),
        (_condition("1 + " * 4000 + "1"), "too long"),
        (_expression, "sizes that depend on each other"),
        (_rename_input, "is not a name of an input"),
        (_name_argument, "is not a name of an input"),
        (_rename_weight, "is not a name of a weight"),
        (_unknown_argument, "'as_graph', which is not known"),
    ],
)
def test_nothing_in_a_file_is_run(tmp_path: Path, change: Callable[[Any], None], message: str) -> None:
    _, file = everything(tmp_path)
    with pytest.raises(ArtifactError, match=message):
        from_pt2(with_program(file, tmp_path / "bad.pt2", change))


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    """Neither the sample inputs, which every file has, nor a weight that is said to be one."""
    _, file = everything(tmp_path)
    poisoned = edited(
        file, tmp_path / "a.pt2", lambda name, content: b"cos\nsystem\n." if name.endswith(".pt") else content
    )
    from_pt2(poisoned)

    def pickled(name: str, content: bytes) -> bytes:
        return content.replace(b'"use_pickle": false', b'"use_pickle": true') if name.endswith(".json") else content

    with pytest.raises(ArtifactError, match=r"holds 'conv.weight' in a form that cannot be read without running code"):
        from_pt2(edited(file, tmp_path / "b.pt2", pickled))


def test_tensors_stay_inside_their_bytes(tmp_path: Path) -> None:
    _, file = everything(tmp_path)

    def larger(name: str, content: bytes) -> bytes:
        if not name.endswith("weights_config.json"):
            return content
        listed = json.loads(content)
        listed["config"]["conv.weight"]["tensor_meta"]["sizes"][0] = {"as_int": 4096}
        return json.dumps(listed).encode()

    with pytest.raises(ArtifactError, match=r"is not a program that torch.export.save wrote"):
        from_pt2(edited(file, tmp_path / "bad.pt2", larger))


def test_files_that_are_no_archives(tmp_path: Path) -> None:
    _, file = everything(tmp_path)
    for name, content in (("empty", b""), ("cut", file.read_bytes()[:2000]), ("text", b"hello")):
        (tmp_path / f"{name}.pt2").write_bytes(content)
        with pytest.raises(ArtifactError, match=rf"{name}.pt2' cannot be read .* truncated or not a .pt2 file"):
            from_pt2(tmp_path / f"{name}.pt2")
    with zipfile.ZipFile(tmp_path / "zip.pt2", "w") as archive:
        archive.writestr("a", "b")
    with pytest.raises(ArtifactError, match="holds no exported program"):
        from_pt2(tmp_path / "zip.pt2")
    with pytest.raises(ArtifactError, match="does not exist"):
        from_pt2(tmp_path / "none.pt2")
    newer = with_program(file, tmp_path / "new.pt2", lambda program: program["schema_version"].update(major=9))
    with pytest.raises(ArtifactError, match="is of version 9 of torch's format"):
        from_pt2(newer)


def test_a_network_that_trains_is_refused(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).train(), torch.randn(2, 3, 4, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(model, (x,)).run_decompositions({}), tmp_path / "net.pt2")
    with pytest.raises(ArtifactError, match="changes its weights when it runs"):
        from_pt2(tmp_path / "net.pt2")


@pytest.mark.parametrize(
    ("text", "shape", "holds"),
    [
        ("(L['x'].size()[3] % 2) == 0", (1, 1, 1, 4), True),
        ("(1 + (((-1) + L['x'].size()[0]) // 2)) != 1", (2,), False),
        ("max(1, L['x'].size()[0] - 3) == min(2, 7)", (5,), True),
        ("2 < L['x'].size()[0] <= 5 and not L['x'].size()[0] == 4", (5,), True),
        ("2 < L['x'].size()[0] <= 5 or L['x'].size()[0] - 1 == 0", (6,), False),
    ],
)
def test_conditions(text: str, shape: tuple[int, ...], holds: bool) -> None:
    assert Condition.parse(text, ("x",)).holds({"x": torch.empty(shape)}) is holds
