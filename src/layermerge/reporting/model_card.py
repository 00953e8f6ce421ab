"""Model card: the `README.md` beside a compressed network, with the metadata that model hubs read at its head.

In: the facts of a run, one of its networks, and the licence, if its user stated one. Out: Markdown behind YAML. The same facts
give the same text; a licence is never guessed.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from layermerge.files import text_writer, write_files
from layermerge.reporting.fact_records import ResultFacts, RunFacts
from layermerge.reporting.html.snippets import snippets
from layermerge.reporting.numbers import NOTHING, interval_text, known, ms, plural, score_text, score_title, size, times
from layermerge.runs.directory import VariantDirectory
from layermerge.runs.records import CONTROL, Report, Variant
from layermerge.tasks.base import Score

_PIPELINES = {"classification": "image-classification", "diffusion": "unconditional-image-generation"}
"""What hubs call the tasks; of an imitation it is not known what the network is for."""
_LICENCES = re.compile(
    r"afl-3\.0|agpl-3\.0|apache-2\.0|artistic-2\.0|bsd(-[23]-clause)?|bsl-1\.0|cc0-1\.0|cc-by(-nc)?(-nd|-sa)?-[234]\.0|"
    r"creativeml-openrail-m|epl-2\.0|gpl-[23]\.0|isc|lgpl-2\.1|lgpl-3\.0|mit|mpl-2\.0|ms-pl|openrail|unlicense|wtfpl|zlib"
)
"""Names that hubs know; any other is `other`, with its name beside it."""


def write_cards(facts: RunFacts, licence: str | None = None) -> None:
    """Writes the card of every result of a run; a licence goes before that of the run's recipe."""
    for result in facts.results:
        _write(VariantDirectory(Path(result.directory)), facts, result.report, result, licence)


def write_card(facts: RunFacts, place: VariantDirectory, licence: str | None = None) -> None:
    """Writes the card of one network, with figures where it has a result."""
    result = next((each for each in facts.results if Path(each.directory) == place.path), None)
    _write(place, facts, place.read_variant(), result, licence)


def _write(
    place: VariantDirectory, facts: RunFacts, variant: Variant, result: ResultFacts | None, licence: str | None
) -> None:
    text = card_text(facts, variant, result, licence or facts.license)
    if not place.card.is_file() or place.card.read_text(encoding="utf-8") != text:
        write_files({place.card: text_writer(text)})


def card_text(facts: RunFacts, variant: Variant, result: ResultFacts | None, licence: str | None) -> str:
    """The whole card."""
    head = yaml.safe_dump(_metadata(facts, result, licence), sort_keys=False, allow_unicode=True, width=1000)
    parts = [_opening(facts, variant, result), _figures(result), _use(facts, result), _making(facts, variant, result)]
    body = "\n\n".join([*filter(None, parts), _licence(licence)])
    return f"---\n{head}---\n\n{body}\n"


# -- for machines


def _metadata(facts: RunFacts, result: ResultFacts | None, licence: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {"library_name": "layermerge"}
    if licence is not None:
        name = licence.lower()
        found |= {"license": name} if _LICENCES.fullmatch(name) else {"license": "other", "license_name": licence}
    suffixes = {Path(file.path).suffix for file in result.files} if result else set()
    found["tags"] = ["layermerge", "model-compression", "depth-compression", *(["onnx"] if ".onnx" in suffixes else [])]
    if pipeline := _PIPELINES.get(str(facts.importance_setting.get("task.task"))):
        found["pipeline_tag"] = pipeline
    if base := _hub_name(facts.model):
        found["base_model"] = base
    if result is not None:
        found["metrics"] = [result.report.score.name]
        found["model-index"] = [{"name": _title(facts, result.report), "results": [_measured(facts, result, pipeline)]}]
    return found


def _measured(facts: RunFacts, result: ResultFacts, pipeline: str | None) -> dict[str, Any]:
    report, tested = result.report, facts.importance_setting.get("task.test")
    where = f"{report.runtime}, {plural(report.threads, 'thread')}, batch {report.batch_size}"
    metrics = [
        _metric(report.score.name, report.score.value, report.score.name),
        _metric(report.score.name, report.original_score.value, f"{report.score.name} of the original"),
        _metric("latency_ms", report.measured_ms, f"latency in ms on {where}"),
        _metric("latency_ms", report.original_ms, f"latency in ms of the original on {where}"),
    ]
    found: dict[str, Any] = {"task": {"type": pipeline or "other", "name": str(pipeline or "other").replace("-", " ")}}
    found["dataset"] = {
        "type": _slug(str(tested or "unknown")),
        "name": re.sub(r"\s+", " ", str(tested or "test data of the run")),
    }
    return found | {"metrics": [each for each in metrics if each is not None]}


def _metric(kind: str, value: float, name: str) -> dict[str, Any] | None:
    return {"type": _slug(kind), "value": round(value, 6), "name": name} if known(value) else None


def _hub_name(model: str | None) -> str | None:
    """Where a hub has the original under a name that follows from the recipe's."""
    source, _, rest = (model or "").partition(":")
    name = rest.partition("?")[0]
    if source == "timm" and re.fullmatch(r"[\w.-]+", name):
        return f"timm/{name}"
    return (
        name if source == "diffusers" and re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not Path(name).exists() else None
    )


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9_.-]+", "-", text.lower()).strip("-") or "unknown"


# -- for people


def _title(facts: RunFacts, variant: Variant) -> str:
    name = facts.model or facts.name
    said = f"{name}, {'as it came' if variant.method == CONTROL else f'{variant.method} at {variant.budget}'}"
    return re.sub(r"\s+", " ", said)  # in metadata, a line of dashes would end them


def _opening(facts: RunFacts, variant: Variant, result: ResultFacts | None) -> str:
    verdict = result.verdict if result else None
    said = f"{verdict.title}. {verdict.budget} {verdict.score}" if verdict else "It was not measured yet."
    return (
        f"# {_plain(_title(facts, variant))}\n\n"
        f"A convolutional network made shallower and faster by layermerge: "
        f"convolutions and activations were removed and what remains was merged. {_plain(said)}"
    )


def _figures(result: ResultFacts | None) -> str:
    if result is None:
        return "## Figures\n\nNone yet: `layermerge export` measures and scores the network."
    report = result.report
    rows = [
        ("", "original", "this network"),
        ("latency", ms(report.original_ms), f"{ms(report.measured_ms)} ({times(report.speed_up)})"),
        (score_title(report.score), _score(report.original_score), _score(report.score)),
        ("convolutions", str(report.convs_before), str(report.convs_after)),
        ("latency budget", NOTHING, f"{report.budget} ({ms(report.budget_ms)}), {_kept(report)}"),
    ]
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    lines.insert(1, "|---|---|---|")
    tested = f"Scores are of {plural(report.score.count, 'test example')}, with 95 % intervals."
    return "\n".join(["## Figures", "", *lines, "", f"Latency is of {_where(report)}. {tested}"])


def _score(score: Score) -> str:
    between = interval_text(score)
    return score_text(score) if between == NOTHING else f"{score_text(score)} ({between})"


def _kept(report: Report) -> str:
    return "met" if report.budget_kept else "missed"


def _where(report: Report) -> str:
    made, how = report.environment, f"{plural(report.threads, 'thread')}, batches of {report.batch_size}"
    version = f" {made.versions[report.runtime]}" if made and report.runtime in made.versions else ""
    on = f" on {_plain(made.processor)} ({plural(made.cores, 'core')})" if made else ""
    return f"{report.runtime}{version}{on}, {how}; measured side by side with the original, norms folded"


def _use(facts: RunFacts, result: ResultFacts | None) -> str:
    if result is None:
        return ""
    # As they are where the card is: hubs have no other folders.
    files = tuple(replace(file, path=Path(file.path).name) for file in result.files)
    parts = ["## Use"]
    parts += [
        f"- `{file.path}`: {file.kind}, {size(file.bytes)}{f' ({file.note})' if file.note else ''}" for file in files
    ]
    alone = next((file.path for file in files if file.path in ("model.pt2", "model.onnx")), None)
    if alone is not None:
        loading = f'import layermerge as lm\n\nfast = lm.load("{alone}")  # without the class of the original'
        parts += ["", "PyTorch:", "", f"```python\n{loading}\n```"]
    for name, code in snippets(facts, replace(result, directory=".", files=files)):
        title = f"{name}, on a fresh instance of the original" if name == "PyTorch" else name
        parts += ["", f"{title}:", "", f"```python\n{code}\n```"]
    return "\n".join(parts)


def _making(facts: RunFacts, variant: Variant, result: ResultFacts | None) -> str:
    lines = ["## How it was made", "", f"- original: `{_plain(facts.model or 'a module given in Python')}`"]
    if facts.weights is not None:
        lines.append(f"- its weights: `{_plain(facts.weights)}`")
    lines.append(f"- method: {variant.method}, budget {variant.budget}")
    if result is None:
        return "\n".join(lines)
    report, trained = result.report, facts.importance_setting.get("task.train")
    if trained is not None:
        lines.append(f"- data: {_plain(str(trained))}")
    epochs = "steps as the recipe says" if report.epochs is None else f"{report.epochs:g} epochs"
    lines.append(f"- fine-tuning: {'none' if report.epochs == 0.0 else epochs}")
    if (made := report.environment) is not None:
        commit = f", commit {made.commit}" if made.commit else ""
        lines.append(
            f"- layermerge {made.versions.get('layermerge', '?')}{commit}, torch {made.versions.get('torch', '?')}"
        )
        lines.append(f"- finished: {made.finished.replace('T', ' ').replace('+00:00', ' UTC')}")
    return "\n".join([*lines, "", "Made again by:", "", f"```\n{result.command}\n```"])


def _licence(licence: str | None) -> str:
    if licence is not None:
        return f"## Licence\n\n{_plain(licence)}, as stated by whoever compressed the network."
    return (
        "## Licence\n\nNot stated. The weights derive from those of the original, whose licence applies: find it, and fill it "
        "in before you publish (`layermerge export RUN --license NAME` writes this card again)."
    )


def _plain(text: str) -> str:
    """On one line, and without what Markdown would read as code or as HTML."""
    return re.sub(r"\s+", " ", text).replace("`", "'").replace("<", "‹").replace(">", "›").strip()


def _cell(text: str) -> str:
    return _plain(text).replace("|", "/")
