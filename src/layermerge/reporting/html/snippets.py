"""Snippets: code that loads and runs a served network, ready to be copied."""

from __future__ import annotations

from layermerge.reporting.fact_records import FileFacts, ResultFacts, RunFacts


def snippets(facts: RunFacts, result: ResultFacts) -> list[tuple[str, str]]:
    """What each is for, and its text: for onnxruntime where there is such a file, and for PyTorch."""
    found = [("onnxruntime", _onnxruntime(facts, file)) for file in result.files if file.path.endswith(".onnx")][:1]
    if any(file.path.endswith(".safetensors") for file in result.files):
        found.append(("PyTorch", _torch(facts, result)))
    return found


def _onnxruntime(facts: RunFacts, file: FileFacts) -> str:
    lines = ["import numpy", "import onnxruntime", ""]
    lines += [f"session = onnxruntime.InferenceSession({file.path!r}, providers=['CPUExecutionProvider'])"]
    names = [f"inputs[{place}].name: {_example(shape)}" for place, shape in enumerate(facts.inputs)]
    lines += ["inputs = session.get_inputs()", *_prepared(facts)]
    return "\n".join([*lines, f"outputs = session.run(None, {{{', '.join(names)}}})"])


def _example(shape: tuple[int, ...]) -> str:
    return f"numpy.zeros((1, {', '.join(map(str, shape))}), numpy.float32)" if shape else "numpy.zeros(1)"


def _torch(facts: RunFacts, result: ResultFacts) -> str:
    """The model's class is needed; its weights are not."""
    name, lines = facts.model, ["import layermerge as lm"]
    if name is None or name.startswith("python:"):
        lines += ["", "model = ...  # a fresh instance of the original network; its weights do not matter"]
    else:
        lines += [
            "from layermerge.models import load_model",
            "",
            f"model = load_model({name!r}).module  # its weights do not matter",
        ]
    return "\n".join([*lines, f"fast = lm.load({result.directory!r}, model).eval()", *_prepared(facts)])


def _prepared(facts: RunFacts) -> list[str]:
    """What images have to be like, as far as the run knows."""
    setting = facts.importance_setting
    mean, std = setting.get("task.mean"), setting.get("task.std")
    return [f"# images in [0, 1], then minus mean ({mean}), divided by std ({std})"] if mean and std else []
