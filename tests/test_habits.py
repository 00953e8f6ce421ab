"""Files that people and other tools expect of a repository: each is read by a parser or checked by a schema of its own."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import layermerge
from layermerge.runs import yaml_text

ROOT = Path(__file__).resolve().parents[1]
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
FORMS = [path for path in TEMPLATES if path.name != "config.yml"]


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


# -- CITATION.cff


def test_the_citation_fits_the_schema_of_the_format() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    package = importlib.util.find_spec(
        "cffconvert"
    )  # which has the schema; its code, for an older jsonschema, is not run
    if package is None or package.origin is None:
        pytest.skip("cffconvert, which has the schema, is not installed")
    schema = json.loads((Path(package.origin).parent / "schemas/1.2.0/schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(read(ROOT / "CITATION.cff"), schema, cls=jsonschema.Draft7Validator)


def test_the_citation_names_this_version_and_the_paper() -> None:
    citation = read(ROOT / "CITATION.cff")
    assert citation["version"] == layermerge.__version__
    assert citation["license"] == "MIT"
    paper = citation["preferred-citation"]
    assert paper == citation["references"][0]
    assert paper["title"] == "LayerMerge: Neural Network Depth Compression through Layer Pruning and Merging"
    assert [each["family-names"] for each in paper["authors"]] == ["Kim", "El Halabi", "Ji", "Song"]
    assert paper["year"] == 2024


# -- pre-commit


def test_hooks_are_valid_and_run_the_tools_of_make_check() -> None:
    config = read(ROOT / ".pre-commit-config.yaml")
    assert {each["repo"] for each in config["repos"]} == {"local"}, "hooks that are fetched need a network"
    entries = [hook["entry"] for each in config["repos"] for hook in each["hooks"]]
    assert all(entry.startswith(".venv/bin/") for entry in entries)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for tool in ("ruff format", "ruff check", "mypy"):
        assert any(f"/{tool}" in entry for entry in entries)
        assert f"$(BIN)/{tool}" in makefile


def test_pre_commit_accepts_the_hooks() -> None:
    pytest.importorskip("pre_commit")
    told = subprocess.run(
        [sys.executable, "-m", "pre_commit", "validate-config", str(ROOT / ".pre-commit-config.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr


# -- issue templates

KINDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_is_one_that_can_be_shown(path: Path) -> None:
    form = read(path)
    assert {"name", "description", "body"} <= form.keys() <= {"name", "description", "labels", "title", "body"}
    ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert len(set(ids)) == len(ids)
    for part in form["body"]:
        assert part["type"] in KINDS
        assert part.keys() <= {"type", "id", "attributes", "validations"}
        assert part["attributes"].get("label") or part["type"] == "markdown"
    assert any(part.get("validations", {}).get("required") for part in form["body"])


def test_a_bug_report_asks_for_what_doctor_says() -> None:
    assert [path.stem for path in FORMS] == ["bug_report", "feature_request"]
    asked = {part["id"]: part for part in read(FORMS[0])["body"]}
    assert "layermerge doctor" in asked["doctor"]["attributes"]["label"]
    assert asked["doctor"]["validations"]["required"] is True


# -- SECURITY.md


def test_every_loader_is_as_the_security_page_says() -> None:
    said = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    for promise in ("weights_only=True", "allow_pickle=False", "--allow-python", "torch.export.load", "TorchScript"):
        assert promise in said
    source = {path: path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")}
    calls = re.compile(r"(?<![\w.])(torch\.load|np\.load|yaml\.load|eval|exec|pickle\.load)\(([^\n]*)")
    found = [(path.name, *match.groups()) for path, text in source.items() for match in calls.finditer(text)]
    assert [
        each
        for each in found
        if not (each[1] == "torch.load" and "weights_only=True" in each[2])
        and not (each[1] == "np.load" and "allow_pickle=False" in each[2])
        and each != ("yaml_text.py", "yaml.load", "text, _BoundedLoader)")
    ] == []
    assert issubclass(yaml_text._BoundedLoader, yaml.SafeLoader)
    loaded = [path.name for path, text in source.items() if "torch.export.load(" in text]
    assert loaded == ["exporting.py"], "only a file that was written a moment ago is read by torch's own reader"
