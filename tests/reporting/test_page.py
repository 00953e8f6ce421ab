"""The page: one file that loads nothing, in which names are data and nothing else; and the verb that writes it."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from command_line import Run, document, one_line
from layermerge.cli import report as reports
from layermerge.errors import ArtifactError
from layermerge.files import plain
from layermerge.reporting.page import page_text, write_page, write_report
from layermerge.tasks.base import Score
from reporting.report_runs import NASTY, finished_run, made_up, report, result

__all__ = ["reports"]


class Page(HTMLParser):
    """The elements of a page as a browser would see them, and the text of its scripts by id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.title = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        del tag
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside == "title":  # that of the page; marks in charts have titles too
            self.title = self.title or data


def test_it_loads_nothing() -> None:
    text = page_text([made_up()])
    for tag, attributes in Page(text).tags:
        assert tag not in {"iframe", "object", "embed", "img", "base"}
        for name in ("src", "href", "srcset", "action", "data"):
            assert not re.match(r"\s*(\w+:)?//", attributes.get(name) or "")
    assert not re.search(
        r"@import|url\(\s*['\"]?(?!data:)|\bfetch\(|XMLHttpRequest|\bimport\(|WebSocket|sendBeacon", text
    )
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert "default-src 'none'" in text


def test_scripts_never_parse_text_as_html() -> None:
    scripts = Page(page_text([made_up()])).scripts
    assert len(scripts) == 2
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", scripts[1])


def test_names_are_data_and_nothing_else() -> None:
    facts = made_up(name=NASTY, layer=NASTY + "{}", directory=f"runs/{NASTY}", missing=(f"<!--{NASTY}",))
    text = page_text([facts])
    page, harmless = Page(text), Page(page_text([made_up(missing=("something",))]))
    assert NASTY not in text
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in harmless.tags]
    assert json.loads(page.scripts[0]) == [plain(facts)]
    assert page.title == f"{NASTY} · layermerge report"


def test_what_is_filled_in_is_not_filled_again() -> None:
    facts = made_up(name="{{script}}", directory="{{style}}")
    page = Page(page_text([facts]))
    assert json.loads(page.scripts[0])[0]["directory"] == "{{style}}"
    assert page.title.startswith("{{script}}")


def test_numbers_that_json_does_not_have_become_null() -> None:
    score = Score("accuracy", math.nan, 10)
    facts = made_up(results=(result(report(score=score)),), headline=0)
    text = page_text([facts])
    island = Page(text).scripts[0]
    assert "NaN" not in island
    assert json.loads(island)[0]["results"][0]["report"]["score"]["value"] is None
    assert "nan" not in text.partition("</style>")[2].partition('id="facts"')[0]


def test_every_script_and_style_is_there() -> None:
    text = page_text([made_up()])
    folder = Path(reports.__file__).parents[1] / "reporting" / "page"
    for path in folder.iterdir():
        if path.suffix in {".js", ".css"}:
            assert path.read_text(encoding="utf-8") in text
            assert len(path.read_text(encoding="utf-8").splitlines()) < 300, path.name
    assert "{{" not in text


def test_it_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = write_page([made_up()], tmp_path / "deep" / "report.html")
    before = target.read_bytes()
    with pytest.raises(ArtifactError, match="a run directory"):
        write_report([finished_run(), tmp_path], target)
    assert target.read_bytes() == before
    assert [path.name for path in target.parent.iterdir()] == ["report.html"]
    with pytest.raises(ArtifactError, match="at least one run"):
        write_report([], target)


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    target = write_page([made_up(directory="a/x"), made_up(directory="b/x"), made_up(name="y")], tmp_path / "r.html")
    island = json.loads(Page(target.read_text(encoding="utf-8")).scripts[0])
    assert [facts["name"] for facts in island] == ["a/x", "b/x", "y"]


# -- the verb


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_run(), tmp_path / "tiny"))


PICTURES = {f"report-{name}.{suffix}" for name in ("accuracy", "frontier", "recovery") for suffix in ("png", "svg")}


def test_the_verb_writes_the_page_and_pictures_into_the_run(run: Run, tiny: Path) -> None:
    (tiny / "report.html").unlink()
    before = {path.name for path in tiny.iterdir()}
    result = run("report", "tiny")
    assert result.code == 0, result.err
    assert {path.name for path in tiny.iterdir()} - before == {"report.html"} | PICTURES
    assert f"\n{Path('tiny') / 'report.html'} " in result.out
    assert (tiny / "report-frontier.png").read_bytes().startswith(b"\x89PNG")
    drawn = (tiny / "report-frontier.svg").read_text(encoding="utf-8")
    assert all(f"<!-- {name} -->" in drawn for name in ("layermerge", "depth", "layeronly"))


def test_json_prints_the_facts(run: Run, tiny: Path) -> None:
    (tiny / "report.html").unlink()
    shutil.copytree(tiny, tiny.parent / "other")
    result = run("report", "tiny", "other", "--out", "both.html", "--no-pictures", "--json")
    facts: Any = document(result)
    assert facts["written"] == ["both.html"]
    assert [entry["name"] for entry in facts["runs"]] == ["tiny", "other"]
    assert facts["runs"][0]["layers"][0]["layer"]["name"] == "stem.0"
    assert not (tiny / "report.html").exists()


def test_a_run_that_has_only_begun_is_shown_and_said(run: Run, tiny: Path) -> None:
    for path in tiny.iterdir():
        if path.name != "plan.json":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    result = run("report", "tiny")
    assert result.code == 0
    assert "tiny: no latency table yet" in result.err
    assert {path.name for path in tiny.iterdir()} == {"plan.json", "report.html"}


def test_pictures_of_several_runs_have_names_of_their_own(run: Run, tiny: Path) -> None:
    assert run("report", "tiny", "tiny", "--out", "out/both.html").code == 0
    names = {path.name for path in Path("out").iterdir()}
    assert {"both.html", "both-run1-accuracy.png", "both-run2-recovery.svg"} <= names
    assert len(names) == 13
    assert tiny.is_dir()


def test_without_matplotlib_the_page_is_still_written(run: Run, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else find(name, *rest)
    )
    assert run("report", "tiny").code == 0
    assert (tiny / "report.html").is_file()
    assert not PICTURES & {path.name for path in tiny.iterdir()}


def test_mistakes_are_one_line(run: Run, tmp_path: Path, tiny: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "is 'empty' a run directory" in one_line(run("report", "empty"))
    assert "ends in .html" in one_line(run("report", "tiny", "--out", "report.pdf"))
    (tiny / "importance.jsonl").write_text("torn\n", encoding="utf-8")
    assert "importance.jsonl" in one_line(run("report", "tiny"))
