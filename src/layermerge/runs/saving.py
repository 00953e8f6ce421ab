"""Save and load: a compressed network as three files that replay on a fresh original.

`plan.json` says what the network was and what it takes, `solution.json` what was chosen, `model.safetensors` holds the
weights in rewritten or merged form. `load` traces the original again, applies the solution and loads strictly. Without the
original, `load` reads what stands for itself: a `.pt2` or `.onnx` file.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import overload

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from layermerge.arguments import FilePath, checked
from layermerge.errors import ArtifactError
from layermerge.files import digest, document_text, text_writer, write_files
from layermerge.planning.plan import Plan
from layermerge.planning.rules import Rules
from layermerge.runs.alone import load_alone
from layermerge.runs.directory import NetworkDirectory
from layermerge.runs.plan_file import PlanFile
from layermerge.runs.records import SavedNetwork
from layermerge.surgery.drop_in import follow_calls_of
from layermerge.surgery.fitted import condense_all
from layermerge.surgery.merge import MergedModule, merged_shell
from layermerge.surgery.rewrite import FittedRange, Origin, RewrittenModule, Surgery, rewrite
from layermerge.tracing.fingerprint import fingerprint
from layermerge.tracing.trace import trace


@checked(ArtifactError)
def save(run_dir: FilePath, module: nn.Module) -> None:
    """Writes a rewritten or merged network to a run directory: plan.json, solution.json and model.safetensors, all or none.

    `load(run_dir, original)` brings it back on a fresh copy of the original network.
    """
    if not isinstance(module, (RewrittenModule, MergedModule)):
        raise ArtifactError(f"save takes what rewrite or merge returns, not {type(module).__name__}")
    surgery, place = module.surgery, NetworkDirectory(Path(run_dir))
    plan = PlanFile.of(
        surgery.inputs,
        Plan(surgery.structure.layers, surgery.candidates, (), Rules(), "layermerge", fingerprint(surgery.structure)),
    )
    if place.plan.is_file() and (known := place.read_plan()).is_of_network(plan):
        plan = known  # a fuller menu of the same network stays
    form = "merged" if isinstance(module, MergedModule) else "rewritten"
    solution = document_text(
        SavedNetwork(plan.fingerprint, form, surgery.added_activations, surgery.candidates, surgery.fits)  # type: ignore[arg-type]
    )
    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in module.state_dict().items()}
    metadata = {"solution": digest(solution)}
    write_files(
        {
            place.plan: text_writer(document_text(plan)),
            place.solution: text_writer(solution),
            place.weights: lambda path: save_file(state, path, metadata=metadata),
        }
    )


@overload
def load(run_dir: FilePath, model: nn.Module) -> RewrittenModule | MergedModule: ...
@overload
def load(run_dir: FilePath, model: None = None) -> nn.Module: ...
@checked(ArtifactError)
def load(run_dir: FilePath, model: nn.Module | None = None) -> nn.Module:
    """Loads a saved network: from its directory on a fresh instance of the original, or from a file that stands for itself.

    With the original model, whose weights do not matter, the result can be called as the original is called, also where that
    was traced with other optional arguments, and a rewritten network can go on training. Without it, `run_dir` is a `.pt2` or
    `.onnx` file, or a directory that holds `model.pt2` or `model.onnx`: the network is read in eval mode, as what it computes,
    without the model's class; outputs of the original's own classes come as dicts. Nothing in a file is run.
    """
    if model is None:
        return load_alone(Path(run_dir))
    return _load_on(model, NetworkDirectory(Path(run_dir)))


def _load_on(model: nn.Module, place: NetworkDirectory) -> RewrittenModule | MergedModule:
    if place.path.is_file():
        raise ArtifactError(f"'{place.path}' is a file, which stands for itself; load it without the model")
    plan, solution = place.read_plan(), place.read_solution()
    state = _read_weights(place)
    traced = trace(model, plan.example_inputs, free_size=plan.free_size)
    if len({plan.fingerprint, solution.fingerprint, fingerprint(traced.structure)}) > 1:
        raise ArtifactError(
            f"'{place.path}' was saved from another network than this {type(model).__name__}; "
            "load it with the model and the input shape it was traced with"
        )
    rewritten = rewrite(traced, solution.candidates, add_activation=solution.added_activations)
    # The model's weights do not matter, so it is not the original that this network could be calibrated to.
    rewritten.surgery = replace(rewritten.surgery, origin=Origin())
    module = _filled(rewritten, place, solution, state)
    follow_calls_of(model, module, traced.inputs)
    return module.train(model.training and solution.form == "rewritten")


def restore(place: NetworkDirectory, net: RewrittenModule) -> RewrittenModule | MergedModule:
    """The saved network, from one that was rewritten alike and is used up; it keeps its original."""
    return _filled(net, place, place.read_solution(), _read_weights(place))


def _filled(
    net: RewrittenModule, place: NetworkDirectory, solution: SavedNetwork, state: dict[str, Tensor]
) -> RewrittenModule | MergedModule:
    net.surgery = replace(net.surgery, fits=_known(solution, net.surgery, place))
    condense_all(net)
    module = merged_shell(net) if solution.form == "merged" else net
    _load_strictly(module, state, place.weights)
    return module


def _known(solution: SavedNetwork, surgery: Surgery, place: NetworkDirectory) -> tuple[FittedRange, ...]:
    """The ranges that were fitted, all of which the network has."""
    spans = {(region.candidate.start, region.candidate.end) for region in surgery.regions}
    for fit in solution.fits:
        if (fit.start, fit.end) not in spans:
            raise ArtifactError(
                f"'{place.solution}' says that layers {fit.start} to {fit.end} were fitted, but they are not one range of "
                "this network; save the network again"
            )
    return solution.fits


def _read_weights(place: NetworkDirectory) -> dict[str, Tensor]:
    path = place.weights
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise ArtifactError(f"'{path}' does not exist; the run has no saved network yet") from None
    except (SafetensorError, OSError) as error:
        raise ArtifactError(f"'{path}' cannot be read ({error}); it is truncated or not a safetensors file") from error
    if metadata.get("solution") != digest(place.solution.read_text(encoding="utf-8")):
        raise ArtifactError(
            f"'{path}' does not belong to the '{place.solution.name}' next to it; save the network again"
        )
    return state


def _load_strictly(module: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    wanted = module.state_dict()
    for problem, keys in (("lacks", wanted.keys() - state.keys()), ("has unknown", state.keys() - wanted.keys())):
        if keys:
            raise ArtifactError(f"'{path}' {problem} '{min(keys)}' ({len(keys)} in all); it belongs to another network")
    for name, tensor in state.items():
        if wanted[name].shape != tensor.shape:
            raise ArtifactError(
                f"'{path}' has shape {tuple(tensor.shape)} for '{name}', not {tuple(wanted[name].shape)}"
            )
    module.load_state_dict(state, assign=True)
