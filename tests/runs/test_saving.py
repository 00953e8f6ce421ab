"""Saved networks: the weights come back bit for bit; what does not fit is refused and changes nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import free_sizes
import layermerge as lm
import real_networks
import zoo
from agreement import same_bits, same_outputs
from layermerge.errors import ArtifactError, LayerMergeError
from layermerge.files import digest
from layermerge.runs import saving
from solutions import random_solution, randomise, untouched_solution
from zoo_registry import conv, image

FILES = {"plan.json", "solution.json", "model.safetensors"}
NETWORKS = [
    "plain",
    "basic",
    "inverted",
    "unet",
    "time_shifted_block_conv_shortcut",
    "norms_of_every_kind",
    "explicit_same_padding",
    "even_same_residual",
    "stochastic_depth",
    "two_inputs",
    "inputs_by_name",
    "dict_output",
]


def other_weights(model: nn.Module) -> nn.Module:
    """The same network as a user would build it afresh."""
    torch.manual_seed(99)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    return model


def network(name: str, seed: int, form: str, **options: bool) -> Any:
    traced = zoo.traced(name)
    net = lm.rewrite(traced, random_solution(lm.plan(traced), random.Random(seed)), **options).eval()
    return lm.merge(net) if form == "merged" else net


@pytest.mark.parametrize("form", ["rewritten", "merged"])
def test_a_network_of_free_size_comes_back_so(tmp_path: Path, form: str) -> None:
    traced = lm.trace(free_sizes.build("pyramid"), free_sizes.image(), free_size=True)
    net = lm.rewrite(traced, random_solution(lm.plan(traced), random.Random(4))).eval()
    saved = lm.merge(net) if form == "merged" else net
    lm.save(tmp_path, saved)
    assert json.loads((tmp_path / "plan.json").read_text())["free_size"] is True
    loaded = lm.load(tmp_path, other_weights(free_sizes.build("pyramid")))
    assert loaded.free_size
    assert same_outputs(saved, loaded, free_sizes.image(21, 13))
    # A network of the same structure, but of fixed size, is another one.
    lm.save(tmp_path, lm.rewrite(lm.trace(free_sizes.build("pyramid"), free_sizes.image()), []))
    assert not lm.load(tmp_path, free_sizes.build("pyramid")).free_size


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


# -- round trips


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
@pytest.mark.parametrize("form", ["rewritten", "merged"])
@pytest.mark.parametrize("name", NETWORKS)
def test_what_is_loaded_is_what_was_saved(tmp_path: Path, name: str, form: str, seed: int) -> None:
    net = network(name, seed, form)
    lm.save(tmp_path, net)
    assert contents(tmp_path).keys() == FILES
    loaded = lm.load(tmp_path, other_weights(zoo.build(name)).eval())
    assert loaded._get_name() == net._get_name()
    assert list(loaded.state_dict()) == list(net.state_dict())
    assert same_bits(net.state_dict(), loaded.state_dict())
    assert same_outputs(net, loaded, zoo.ZOO[name].inputs(3))
    assert not any(tensor.is_meta for tensor in (*loaded.parameters(), *loaded.buffers()))


@pytest.mark.parametrize("form", [pytest.param("rewritten", marks=pytest.mark.slow), "merged"])
def test_a_published_network(tmp_path: Path, form: str) -> None:
    model, inputs = real_networks.build("timm:mobilenetv2_100", size=33)
    randomise(model, 1)
    traced = lm.trace(model.eval(), inputs(2))
    net: Any = lm.rewrite(traced, random_solution(lm.plan(traced), random.Random(1)))
    net = lm.merge(net) if form == "merged" else net
    lm.save(tmp_path, net)
    loaded = lm.load(tmp_path, real_networks.build("timm:mobilenetv2_100", size=33)[0].eval())
    assert same_bits(net.state_dict(), loaded.state_dict())
    assert same_outputs(net.eval(), loaded, inputs(3))


def test_a_loaded_network_saves_again_to_the_same_files(tmp_path: Path) -> None:
    lm.save(tmp_path / "a", network("basic", 1, "rewritten"))
    again = lm.load(tmp_path / "a", zoo.build("basic"))
    lm.save(tmp_path / "b", again)
    first, second = contents(tmp_path / "a"), contents(tmp_path / "b")
    weights = [load_file(tmp_path / place / "model.safetensors") for place in "ab"]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(tensor, weights[1][key]) for key, tensor in weights[0].items())
    assert all(first[name] == second[name] for name in ("plan.json", "solution.json"))


def test_a_loaded_rewritten_network_merges_like_the_one_saved(tmp_path: Path) -> None:
    net = network("inverted", 2, "rewritten")
    lm.save(tmp_path, net)
    loaded = lm.load(tmp_path, zoo.build("inverted"))
    assert same_bits(lm.merge(net).state_dict(), lm.merge(loaded).state_dict())


@pytest.mark.parametrize("added", [True, False])
def test_added_activations_are_remembered(tmp_path: Path, added: bool) -> None:
    traced = zoo.traced("inverted")
    menu = lm.plan(traced)
    (whole,) = [entry for entry in menu.candidates if entry.kept == entry.layers and (entry.start, entry.end) == (0, 3)]
    net = lm.merge(lm.rewrite(traced, [whole], add_activation=added))
    lm.save(tmp_path, net)
    assert same_outputs(net, lm.load(tmp_path, zoo.build("inverted")), image(4)(2))


def test_modes_follow_the_given_model_and_merged_networks_stay_in_eval_mode(tmp_path: Path) -> None:
    for form, expected in (("rewritten", True), ("merged", False)):
        lm.save(tmp_path / form, network("basic", 1, form))
        assert lm.load(tmp_path / form, zoo.build("basic").train()).training is expected
        assert lm.load(tmp_path / form, zoo.build("basic").eval()).training is False


def test_saving_again_replaces_the_run(tmp_path: Path) -> None:
    lm.save(tmp_path, network("basic", 1, "rewritten"))
    merged = network("basic", 3, "merged")
    lm.save(tmp_path, merged)
    assert contents(tmp_path).keys() == FILES
    assert same_outputs(merged, lm.load(tmp_path, zoo.build("basic")), image()(2))


def fuller_menu(run: Path) -> str:
    """Lets plan.json hold a candidate more than the solution, as a plan does."""
    path = run / "plan.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    extra = lm.plan(zoo.traced("basic"))["1-3:5x5g1"]
    known = [entry for entry in data["candidates"] if (entry["start"], entry["end"]) == (0, 1)]
    entry = {**known[0], "start": 1, "end": 3, "layers": list(extra.layers), "kept": list(extra.kept)}
    data["candidates"].append(entry)
    text = json.dumps(data, indent=1) + "\n"
    path.write_text(text, encoding="utf-8")
    return text


def test_a_fuller_menu_of_the_same_network_stays(tmp_path: Path) -> None:
    traced = zoo.traced("basic")
    single = [candidate for candidate in lm.plan(traced).candidates if candidate.untouched]
    lm.save(tmp_path, lm.rewrite(traced, single))
    written = json.loads(fuller_menu(tmp_path))
    lm.save(tmp_path, lm.rewrite(traced, single[:2]))
    assert json.loads((tmp_path / "plan.json").read_text(encoding="utf-8")) == written
    lm.load(tmp_path, zoo.build("basic"))


def test_a_plan_of_another_network_is_not_kept_in_place(tmp_path: Path) -> None:
    lm.save(tmp_path, network("plain", 1, "merged"))
    lm.save(tmp_path, network("basic", 1, "merged"))
    lm.load(tmp_path, zoo.build("basic"))


def test_weights_hold_tensors_only(tmp_path: Path) -> None:
    net = network("basic", 1, "merged")
    lm.save(tmp_path, net)
    stored = load_file(tmp_path / "model.safetensors")
    assert stored.keys() == net.state_dict().keys()
    assert all(torch.equal(stored[key], tensor) for key, tensor in net.state_dict().items())


# -- what does not load


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A saved network in which every layer was kept alone."""
    directory = tmp_path / "run"
    lm.save(directory, lm.merge(lm.rewrite(zoo.traced("basic"), untouched_solution(lm.plan(zoo.traced("basic"))))))
    return directory


def refused(run: Path, model: nn.Module, match: str) -> None:
    before = contents(run)
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    with pytest.raises(ArtifactError, match=match) as caught:
        lm.load(run, model)
    assert "\n" not in str(caught.value)
    assert contents(run) == before
    assert all(torch.equal(tensor, state[key]) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize("length", [0, 4, 100, -1])
def test_truncated_weights(run: Path, length: int) -> None:
    path = run / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    refused(run, zoo.build("basic"), match=r"model\.safetensors' cannot be read")


@pytest.mark.parametrize("junk", [b"not weights at all", b"\xff" * 64, b"PK\x03\x04" + bytes(60)])
def test_weights_that_are_no_safetensors_file(run: Path, junk: bytes) -> None:
    (run / "model.safetensors").write_bytes(junk)
    refused(run, zoo.build("basic"), match="truncated or not a safetensors file")


def test_foreign_weights(run: Path) -> None:
    save_file({"stem.weight": torch.zeros(4, 3, 3, 3)}, run / "model.safetensors")
    refused(run, zoo.build("basic"), match="does not belong to the 'solution.json' next to it; save the network again")


def test_weights_of_another_solution(run: Path, tmp_path: Path) -> None:
    lm.save(tmp_path / "other", network("basic", 4, "merged"))
    (tmp_path / "other/model.safetensors").replace(run / "model.safetensors")
    refused(run, zoo.build("basic"), match="does not belong to the 'solution.json' next to it")


Change = Callable[[dict[str, Tensor]], object]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("stem.bias"), r"lacks 'stem\.bias' \(1 in all\); it belongs to another network"),
        (lambda state: state.update(extra=torch.zeros(2)), r"has unknown 'extra' \(1 in all\)"),
        (lambda state: state.update({"stem.bias": torch.zeros(5)}), r"has shape \(5,\) for 'stem\.bias', not \(4,\)"),
    ],
)
def test_weights_that_do_not_fit_are_loaded_strictly(run: Path, change: Change, message: str) -> None:
    path = run / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    state = load_file(path)
    change(state)
    save_file(state, path, metadata=metadata)
    refused(run, zoo.build("basic"), match=message)


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


@pytest.mark.parametrize("name", ["plan.json", "solution.json"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.update(schema_version=3), "has format 3, this layermerge reads 2; upgrade layermerge"),
        (lambda data: data.update(schema_version=1), "has an earlier format"),
        (lambda data: data.update(schema_version="one"), "has no schema_version"),
        (lambda data: data.update(surprise=1), "is not a valid .*: surprise: there is no such key"),
        (lambda data: data.update(candidates=3), "is not a valid .*: candidates"),
        (lambda data: data.pop("fingerprint"), "is not a valid .*: fingerprint: is missing"),
        (lambda data: data["candidates"][0].update(start="first"), r"is not a valid .*: candidates\.0\.start"),
        (lambda data: data["candidates"][0].update(start=1.5), r"is not a valid .*: candidates\.0\.start"),
    ],
)
def test_records_that_are_not_ours(
    run: Path, name: str, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit(run / name, change)
    refused(run, zoo.build("basic"), match=message)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '"text"', "{}"])
@pytest.mark.parametrize("name", ["plan.json", "solution.json"])
def test_torn_records(run: Path, name: str, text: str) -> None:
    (run / name).write_text(text, encoding="utf-8")
    refused(run, zoo.build("basic"), match=f"{name}' (is truncated or not JSON|has no schema_version)")


def test_a_record_that_is_no_text(run: Path) -> None:
    (run / "plan.json").write_bytes(b"\xff\xfe\x00")
    refused(run, zoo.build("basic"), match=r"plan\.json' is truncated or not JSON")


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_missing_file(run: Path, name: str) -> None:
    (run / name).unlink()
    refused(run, zoo.build("basic"), match=f"{name}' does not exist")


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"does not exist; is .* a run directory"):
        lm.load(tmp_path / "absent", zoo.build("basic"))


def test_another_model(run: Path) -> None:
    other = nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 4))
    refused(run, other, match="was saved from another network than this Sequential")


def test_another_width_of_the_same_model(tmp_path: Path) -> None:
    def chain(width: int) -> nn.Module:
        return nn.Sequential(conv(3, width), nn.ReLU(), conv(width, width))

    traced = lm.trace(chain(4), image()(2))
    lm.save(tmp_path, lm.rewrite(traced, [lm.plan(traced)["0-2:5x5g1"]]))
    refused(tmp_path, chain(6), match="was saved from another network")


def test_another_input_shape(run: Path) -> None:
    edit(run / "plan.json", lambda data: data["args"][0].update(shape=[2, 3, 20, 16]))
    refused(run, zoo.build("basic"), match="the input shape it was traced with")


def test_an_unknown_dtype(run: Path) -> None:
    edit(run / "plan.json", lambda data: data["args"][0].update(dtype="save"))
    refused(run, zoo.build("basic"), match="plan.json names an unknown dtype 'save'")


# -- what is not written


@pytest.mark.parametrize("module", [nn.Conv2d(3, 3, 1), nn.Sequential()])
def test_a_plain_module_is_not_saved(tmp_path: Path, module: nn.Module) -> None:
    with pytest.raises(ArtifactError, match=r"^save takes what rewrite or merge returns, not \w+$"):
        lm.save(tmp_path / "run", module)
    assert not (tmp_path / "run").exists()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(ArtifactError, match="cannot write") as caught:
        lm.save(tmp_path / "file" / "run", network("basic", 1, "merged"))
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == {"file": b"mine"}


def test_inputs_that_cannot_be_saved(tmp_path: Path) -> None:
    net = network("nested_inputs", 1, "rewritten")
    with pytest.raises(ArtifactError, match="an example input of type dict cannot be saved; pass tensors"):
        lm.save(tmp_path / "run", net)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("earlier", [True, False])
def test_a_crash_while_writing_leaves_the_earlier_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: bool
) -> None:
    run = tmp_path / "run"
    if earlier:
        lm.save(run, network("basic", 1, "merged"))
    before = contents(run) if earlier else {}

    def full(_state: Any, path: Path, **_: Any) -> None:
        Path(path).write_bytes(b"half of i")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "save_file", full)
    with pytest.raises(LayerMergeError, match=r"cannot write .*: No space left on device"):
        lm.save(run, network("basic", 3, "rewritten"))
    assert contents(run) == before
    if earlier:
        lm.load(run, zoo.build("basic"))


def test_all_files_can_be_read_by_those_who_may_read_new_files(tmp_path: Path) -> None:
    """As any file that a program writes here: safetensors alone would let only the owner read the weights."""
    plain = tmp_path / "plain"
    plain.touch()
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1))
    lm.save(tmp_path / "run", lm.merge(lm.rewrite(lm.trace(net, torch.randn(2, 3, 8, 8)), [])))
    for file in (tmp_path / "run").iterdir():
        assert file.stat().st_mode == plain.stat().st_mode, file.name


def test_fits_of_ranges_that_the_network_has_not_are_refused(tmp_path: Path) -> None:
    lm.save(tmp_path, network("plain", 1, "rewritten"))
    solution = tmp_path / "solution.json"
    saved = json.loads(solution.read_text())
    solution.write_text(json.dumps({**saved, "fits": [{"start": 0, "end": 99, "form": "kernel"}]}))
    weights = load_file(tmp_path / "model.safetensors")
    save_file(weights, tmp_path / "model.safetensors", metadata={"solution": digest(solution.read_text())})
    with pytest.raises(ArtifactError, match="says that layers 0 to 99 were fitted, but they are not one range"):
        lm.load(tmp_path, zoo.build("plain"))
