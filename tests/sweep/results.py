"""What the sweep found, a line a network, each on disk before the next is begun."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydantic import ValidationError

from layermerge.files import Record

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "models.jsonl"


class Finding(Record):
    """One network. What was not reached before a failure is None."""

    name: str
    failure: str | None = None
    """Why it is not in the table of what works, in plain words."""
    input: str | None = None
    layers: int | None = None
    blocks: int | None = None
    candidates: int | None = None
    removal_share: float | None = None
    merging_share: float | None = None
    difference: float | None = None
    """The worst max|a-b| / max|a| between rewritten and merged networks in float64, over outputs and shared features."""
    onnx_difference: float | None = None
    branches_expected: int | None = None
    branches_found: int | None = None
    seconds: float | None = None
    """Of processor time that trace and plan took: the clock on the wall would tell how busy the machine was."""


class Results:
    """A JSONL file of findings; its first line says what they were made with."""

    def __init__(self, path: Path, made_with: dict[str, str], *, keep: bool = False) -> None:
        """Keeps the findings of an interrupted sweep with the same sources and libraries; removes others."""
        self.path = path
        self.findings: dict[str, Finding] = {}
        header, *lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else [""]
        if keep or header == json.dumps(made_with):
            self.findings = read_findings(lines)
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = [json.dumps(made_with), *(finding.model_dump_json() for finding in self.findings.values())]
        path.write_text("\n".join(texts) + "\n", encoding="utf-8")

    def add(self, finding: Finding) -> None:
        self.findings[finding.name] = finding
        with self.path.open("a", encoding="utf-8") as file:
            file.write(finding.model_dump_json() + "\n")
            file.flush()
            os.fsync(file.fileno())


def read_findings(lines: list[str]) -> dict[str, Finding]:
    """By name, the last one of each; a line that a kill left incomplete is none."""
    findings = {}
    for line in lines:
        try:
            finding = Finding.model_validate_json(line)
        except ValidationError:
            continue
        findings[finding.name] = finding
    return findings
