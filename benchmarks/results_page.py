"""Results page: tables of result files, written between the markers of the pages that show them.

    python benchmarks/results_page.py            # writes
    python benchmarks/results_page.py --check    # exits with 1 where a page says something else than the files

A page has `<!-- results: NAME -->` and `<!-- end of results -->`; what stands between them is made of files in
benchmarks/results, so that no figure is typed by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import chosen_networks, detector_results, diffusion_results, estimators  # noqa: E402
from benchmarks.claims import claims, points, standing  # noqa: E402
from benchmarks.equal_latency import beside  # noqa: E402
from benchmarks.evidence import STUDY, Entry, Latencies, latencies_of, missing_of, results_of  # noqa: E402
from benchmarks.missing import reasons  # noqa: E402

from layermerge.reporting.score_change import score_change  # noqa: E402
from layermerge.runs.records import CONTROL, Report  # noqa: E402
from layermerge.tasks.base import Score  # noqa: E402

PAGES = ("README.md", "benchmarks/README.md", "docs/results.md", "docs/unlabelled.md")
TITLES = {
    "demo": "the demo's network, 10,000 images of Fashion-MNIST",
    "resnet20": "ResNet-20, CIFAR-10",
    "mobilenetv2": "MobileNetV2 of width 0.5, CIFAR-10",
    "resnet56": "ResNet-56, CIFAR-10",
}
_NOT_RUN = "Not run yet: `python benchmarks/evidence.py {network}`."
_MARKED = re.compile(r"(<!-- results: ([a-z0-9 -]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)


def trained(network: str) -> list[str]:
    """Every trained file of a network: latency on each runtime, accuracy, and the difference from the control."""
    found, timed = [(e, made.report) for e, made in results_of(network) if e.epochs], latencies_of(network)
    if not found or timed is None:
        return [_NOT_RUN.format(network=network)]
    controls = {entry.label: report for entry, report in found if entry.method == CONTROL}
    lines = [
        "| method | budget | epochs | onnxruntime | OpenVINO | accuracy (%) | points over the control (paired 95 %) | convs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for entry, report in sorted(found, key=lambda pair: (-pair[0].epochs, -pair[1].measured_ms)):
        control = controls.get(entry.label)
        change = "" if control is None or entry.method == CONTROL else points(score_change(control.score, report.score))
        lines.append(
            f"| {entry.method} | {entry.budget} | {_epochs(entry)} | {_times(timed, 'onnxruntime', entry)} | "
            f"{_times(timed, 'openvino', entry)} | {100 * report.score.value:.2f} | {change} | {report.convs_after} |"
        )
    return [*lines, "", _origin(timed, [report for _, report in found])]


def headline() -> list[str]:
    """The shipped network at 60 %, as one sentence."""
    found, timed = {entry: made.report for entry, made in results_of("demo")}, latencies_of("demo")
    mine, untouched, control = Entry("layermerge", "60%", 10), Entry("layermerge", "60%", 0), Entry(CONTROL, "100%", 10)
    if timed is None or not {mine, untouched, control} <= found.keys():
        return [_NOT_RUN.format(network="demo")]
    taken, report = timed.milliseconds["onnxruntime"], found[mine]
    own, whole, change = taken[mine.name], taken["original"], score_change(found[control].score, report.score)
    return [
        f"**Measured:** a small network of inverted residual blocks, onnxruntime, one thread ({timed.environment.processor}): "
        f"{whole:.2f} -> {own:.2f} ms for {report.batch_size} images ({whole / own:.2f}x), {report.convs_before} -> "
        f"{report.convs_after} convolutions, accuracy {100 * report.original_score.value:.1f} -> "
        f"{100 * report.score.value:.1f} % on {report.score.count:,} test images; the original, "
        f"fine-tuned as long, has {100 * found[control].score.value:.1f} % "
        f"(difference {points(change)} points, paired 95 % interval). Without any training: "
        f"{100 * found[untouched].score.value:.1f} %."
    ]


def expected(*, every: bool = True) -> list[str]:
    """A line a budget and network, without training and as it was trained longest; of all budgets, or of those with both."""
    lines = [
        "| network, data, one thread of onnxruntime | latency | accuracy (%) before | without training | fine-tuned | "
        "the original, fine-tuned as long |",
        "|---|---|---|---|---|---|",
    ]
    for network in STUDY:
        timed, found = latencies_of(network), dict(results_of(network))
        taken = timed.milliseconds["onnxruntime"] if timed else {}
        for budget in dict.fromkeys(entry.budget for entry in sorted(found, key=_share, reverse=True)):
            mine = [
                entry for entry in found if (entry.method, entry.budget) == ("layermerge", budget) and entry.teacher
            ]
            alike = sorted((entry for entry in mine if entry.name in taken), key=lambda entry: entry.epochs)
            if alike and (every or len(alike) > 1):
                reports = {entry: made.report for entry, made in found.items()}
                lines.append(f"| {TITLES[network]} | " + " | ".join(_expected(alike, reports, taken)) + " |")
    return lines


def _share(entry: Entry) -> float:
    return float(entry.budget.removesuffix("%"))


def _expected(alike: Sequence[Entry], reports: dict[Entry, Report], taken: dict[str, float]) -> list[str]:
    """Cells of a line: latency, accuracies of the same choice with the least and with the most training, and the control's."""
    first, longest = alike[0], alike[-1]
    own, whole = taken[longest.name], taken["original"]
    epochs = "1 epoch" if longest.epochs == 1 else f"{longest.epochs} epochs"
    control = next((report for entry, report in reports.items() if _controls(entry, longest)), None)
    return [
        f"{whole:.2f} -> {own:.2f} ms ({whole / own:.2f}x)",
        _percent(reports[first].original_score),
        "" if first.epochs else _percent(reports[first].score),
        f"{_percent(reports[longest].score)} ({epochs})" if longest.epochs else "",
        "" if control is None else _percent(control.score),
    ]


def _percent(score: Score) -> str:
    return f"{100 * score.value:.1f}"


def _controls(entry: Entry, trained: Entry) -> bool:
    return entry.method == CONTROL and entry.label == trained.label


def untrained(network: str) -> list[str]:
    """Accuracy against measured latency with no training at all, beside channel pruning."""
    found, timed = [(e, made.report) for e, made in results_of(network) if not e.epochs], latencies_of(network)
    if not found or timed is None:
        return [_NOT_RUN.format(network=network)]
    lines = [
        "| method | budget | onnxruntime | OpenVINO | accuracy (%) | points over the original (paired 95 %) |",
        "|---|---|---|---|---|---|",
    ]
    for entry, report in found:
        change = points(score_change(report.original_score, report.score))
        lines.append(
            f"| {entry.method} | {entry.budget} | {_times(timed, 'onnxruntime', entry)} | {_times(timed, 'openvino', entry)} | "
            f"{100 * report.score.value:.2f} | {change} |"
        )
    return [*lines, "", _origin(timed, [report for _, report in found])]


def rivals(network: str) -> list[str]:
    """Each rival's file beside LayerMerge at the same latency, image by image."""
    timed = latencies_of(network)
    if timed is None:
        return [_NOT_RUN.format(network=network)]
    lines = [
        "| rival | budget | epochs | its latency | LayerMerge's files on either side | "
        "points that LayerMerge is ahead (paired 95 %) |",
        "|---|---|---|---|---|---|",
    ]
    found, taken = dict(results_of(network)), timed.milliseconds["onnxruntime"]
    for entry in found:
        if entry.method in ("layermerge", CONTROL) or entry.name not in taken:
            continue
        mine = beside(entry, found, taken)
        files, ahead = ("none is as fast", "") if mine is None else (mine.budgets, points(mine.change))
        its = _times(timed, "onnxruntime", entry)
        lines.append(f"| {entry.method} | {entry.budget} | {entry.epochs} | {its} | {files} | {ahead} |")
    return lines + reasons((f"{entry.method} at {entry.budget}", missing) for entry, missing in missing_of(network))


def tables(network: str) -> list[str]:
    """What tables cost, for methods that have them."""
    found = {entry.method: made.report.cost for entry, made in results_of(network) if made.report.cost.entries}
    lines = [
        "| method | candidates | scored | ruled out by latency | works timed | seconds of latency | seconds of importance |",
        "|---|---|---|---|---|---|---|",
    ]
    for method, cost in found.items():
        lines.append(
            f"| {method} | {cost.entries} | {cost.scored} | {cost.ruled_out} | {cost.workloads} | "
            f"{cost.latency_seconds:.0f} | {cost.importance_seconds:.0f} |"
        )
    return lines if found else [_NOT_RUN.format(network=network)]


def _epochs(entry: Entry) -> str:
    return str(entry.epochs) if entry.teacher else f"{entry.epochs}, labels alone"


def _times(timed: Latencies, runtime: str, entry: Entry) -> str:
    taken = timed.milliseconds[runtime]
    own, whole = taken.get(entry.name), taken["original"]
    return "" if own is None else f"{own:.3f} ms ({whole / own:.2f}x)"


def _origin(timed: Latencies, reports: Sequence[Report]) -> str:
    """Where the latencies of a table come from, and where its networks: several sessions may have made them."""
    clock = timed.environment
    commits: dict[str, list[str]] = {}
    for made in (report.environment for report in reports):
        if made is not None:
            commits.setdefault(made.processor, []).append(made.commit or "of an installed package")
    places = " and ".join(f"{processor} ({', '.join(dict.fromkeys(at))})" for processor, at in commits.items())
    return (
        f"Latencies are of one run on {clock.processor} ({clock.commit}), one thread, {clock.finished[:10]}; "
        f"networks were made on {places or 'an unknown machine'}. In brackets: commits."
    )


def _detectors() -> list[str]:
    folder = detector_results.RESULTS
    return detector_results.table(detector_results.read_results(folder), detector_results.unreachable(folder))


def _detectors_briefly() -> list[str]:
    return detector_results.briefly(detector_results.read_results(detector_results.RESULTS))


RENDERERS: dict[str, Callable[[], list[str]]] = {
    f"{kind} {network}": partial(make, network)
    for network in STUDY
    for kind, make in (("trained", trained), ("untrained", untrained), ("rivals", rivals), ("tables", tables))
} | {
    "headline": headline,
    "expected": expected,
    "expected-briefly": partial(expected, every=False),
    "detectors": _detectors,
    "detectors-briefly": _detectors_briefly,
    "diffusion": diffusion_results.table,
    "claims": claims,
    "standing": standing,
    "estimators": estimators.results,
    "chosen": chosen_networks.table,
}


def filled(text: str) -> str:
    """A page with all its tables made again."""

    def table(found: re.Match[str]) -> str:
        return found[1] + "\n" + "\n".join(RENDERERS[found[2]]()) + "\n\n" + found[3]

    return _MARKED.sub(table, text)


def main() -> None:
    stale = []
    for name in PAGES:
        page = ROOT / name
        before = page.read_text(encoding="utf-8")
        if (after := filled(before)) != before:
            stale.append(name)
            if "--check" not in sys.argv[1:]:
                page.write_text(after, encoding="utf-8")
    print("\n".join(stale) or "every page says what the files say")
    sys.exit(1 if stale and "--check" in sys.argv[1:] else 0)


if __name__ == "__main__":
    main()
