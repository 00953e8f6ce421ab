"""docs/models.md: what the sweep found, as a page for users."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from sweep.networks import all_networks
from sweep.results import Finding, Results

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"

_HEAD = """# Networks that work

Made by `make sweep` from [the findings](../benchmarks/results/models.jsonl); do not edit. It sweeps one member of every family
of convolutional networks in timm (the smallest; a family is what one of timm's files names alike, and one with five convs or
fewer is a transformer or a mixer), classifiers, segmenters and detectors of torchvision, segmenters of
segmentation_models_pytorch, networks of diffusers, and two of ultralytics' detectors, with random weights.

{summary}

- **layers, blocks, candidates**: convs that a plan can treat, residual blocks, and ways to treat ranges of layers.
- **removal, merging**: how much of the floating-point operations of all convolutions, counted by torch on the original, is
  done by layers that some candidate removes, and by layers that some candidate merges with at least one other conv.
  A layer may count for both, so they do not add up.
- **branches**: residual branches beside an identity shortcut that one candidate drops, of those that there are. They are
  counted on the operators that the original calls: a map added to what is computed from it through a conv, where nothing
  else reads what is computed on the way.
- **difference**: the largest max\\|a-b\\| / max\\|a\\| between the rewritten and the merged network over three random
  solutions, in float64, at the outputs and at every map that both still compute. Statistics and weights of norms, biases
  and layer scales are made random first, and kernels are scaled so that every conv's output has size 1, in the original and
  again in the rewritten network, as training would keep it.
- **ONNX**: the same between the merged network and its file in onnxruntime, in float32, at two batch sizes.
- **seconds**: of processor time that `trace` and `plan` took, at the input given, with one thread.

Detectors, segmenters and diffusion networks among them are also traced with free height and width, and compared with the
original, rewritten with merged, and merged with its file at five sizes each, odd ones where the original takes them, by
`tests/sweep/test_sizes.py`.
"""
_COLUMNS = (
    "network",
    "input",
    "layers",
    "blocks",
    "candidates",
    "removal",
    "merging",
    "branches",
    "difference",
    "ONNX",
    "seconds",
)


def write_page(results: Results, page: Path = PAGE) -> None:
    page.write_text(page_text(results.findings.values()), encoding="utf-8")


def page_text(findings: Iterable[Finding]) -> str:
    ordered = sorted(findings, key=lambda finding: finding.name)
    works = [finding for finding in ordered if finding.failure is None]
    failed = [finding for finding in ordered if finding.failure is not None]
    parts = [_HEAD.format(summary=_summary(ordered, works))]
    for library, members in groupby(works, key=lambda finding: finding.name.split(":")[0]):
        rows = [_row(finding) for finding in members]
        parts.append(
            f"## {library}\n\n" + "\n".join([_line(_COLUMNS), _line(["---", "---", *["--:"] * 9]), *rows]) + "\n"
        )
    if failed:
        reasons = "\n".join(f"- `{finding.name}`: {finding.failure}" for finding in failed)
        parts.append(f"## What does not work\n\n{reasons}\n")
    examined = {finding.name for finding in ordered}
    if waiting := [f"`{name}`" for name in sorted(all_networks()) if name not in examined]:
        parts.append(
            f"## Not examined yet\n\nThe figures above are not of these, mostly larger networks: {', '.join(waiting)}.\n"
        )
    return "\n".join(parts)


def _summary(findings: list[Finding], works: list[Finding]) -> str:
    traced = sum(finding.layers is not None for finding in findings)
    difference = max((finding.difference or 0.0 for finding in works), default=0.0)
    onnx = max((finding.onnx_difference or 0.0 for finding in works), default=0.0)
    slowest = max((finding.seconds or 0.0 for finding in works), default=0.0)
    expected, found = (
        sum(getattr(finding, name) or 0 for finding in works) for name in ("branches_expected", "branches_found")
    )
    return (
        f"**{len(findings)} networks, {traced} traced and planned, {len(works)} exact and equal through ONNX.** Largest "
        f"difference {difference:.1e} in float64, {onnx:.1e} through ONNX in float32. {found} of {expected} residual branches "
        f"can be dropped whole. Trace and plan took at most {slowest:.0f} seconds."
    )


def _row(finding: Finding) -> str:
    assert finding.removal_share is not None
    assert finding.merging_share is not None
    return _line(
        (
            finding.name.split(":", 1)[1],
            finding.input,
            finding.layers,
            finding.blocks,
            finding.candidates,
            f"{finding.removal_share:.0%}",
            f"{finding.merging_share:.0%}",
            f"{finding.branches_found} of {finding.branches_expected}" if finding.branches_expected else "-",
            f"{finding.difference:.0e}",
            f"{finding.onnx_difference:.0e}",
            f"{finding.seconds:.1f}",
        )
    )


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
