"""The report as a page for a decision: ten questions, each answered on the first screen or after one click; for everybody."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from reporting.conftest import Show
from reporting.report_runs import ORIGINAL, made_up, report, result

if TYPE_CHECKING:
    from playwright.sync_api import Page


def in_sight(page: Page, words: str) -> bool:
    """Whether text that matches is in the part of the page that a reader sees."""
    found = page.evaluate(
        """() => {
            const seen = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
            while (walk.nextNode()) {
                const node = walk.currentNode, range = document.createRange();
                if (['SCRIPT', 'STYLE', 'NOSCRIPT'].includes(node.parentElement.tagName)) continue;
                range.selectNodeContents(node);
                const boxes = [...range.getClientRects()];
                if (boxes.some((box) => box.height > 0 && box.top >= 0 && box.bottom <= innerHeight)) seen.push(node.data);
            }
            return seen.join(' ');
        }"""
    )
    return bool(re.search(words, re.sub(r"\s+", " ", found)))


def link(name: str) -> Callable[[Page], None]:
    return lambda page: page.locator(".ways").get_by_role("link", name=name).click()


QUESTIONS: list[tuple[str, str, Callable[[Page], None] | None]] = [
    ("how much faster", r"1\.74× faster", None),
    ("how accurate and how sure", r"90\.00 → 89\.00 %: −1\.00 points, 95 % interval −\d\.\d\d to", None),
    ("was the budget kept", r"Budget met: 11\.5 ms", None),
    ("which file", r"runs/made-up/layermerge/60pct/plain/model\.onnx.*1\.06 MB", link("Use it")),
    ("how do I load it", r"onnxruntime\.InferenceSession\(", link("Use it")),
    (
        "how do I get 45 %",
        r"layermerge compress --run-dir \S+ --budget 45%",
        lambda page: page.click("[data-budget='45%']"),
    ),
    ("which layers went", r"Turned into one: block0\.conv and block1\.conv", link("Which layers went")),
    ("where does the time go now", r"Slowest of \d+ parts: block\S+ .* \d+\.\d %", link("Which layers went")),
    ("why not more", r"The fastest network that can be built .* takes 8\.00 ms", link("Why not more")),
    (
        "how do I reproduce it",
        r"layermerge compress runs/made-up/recipe\.yaml .*--budget 60%.*Some CPU",
        link("Reproduce"),
    ),
]


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_ten_questions_from_the_first_screen_or_one_click(show: Show, width: int, height: int) -> None:
    page = show(width=width, height=height, reduced_motion="reduce")
    for question, answer, click in QUESTIONS:
        page.evaluate("history.replaceState(null, '', ' '); scrollTo(0, 0)")
        if not in_sight(page, answer):
            assert click, question
            click(page)
        assert in_sight(page, answer), question


def test_a_verdict_has_a_colour_a_shape_and_words(show: Show) -> None:
    seen = set()
    for value, kept, words in ((0.899, True, "Good"), (0.885, True, "Look closer"), (0.5, False, "Not good enough")):
        before, after = (replace(ORIGINAL, value=each, low=each - 0.003, high=each + 0.003) for each in (0.9, value))
        own = report(original_score=before, score=after, budget_kept=kept)
        page = show(made_up(results=(result(report("original", "100%", 20.0)), result(own))))
        card = page.locator("#verdict")
        assert words in card.inner_text()
        colour = card.evaluate("(node) => getComputedStyle(node).borderLeftColor")
        seen.add((colour, card.locator(".icon").inner_html()))
        assert ("What to try" in card.inner_text()) == (words != "Good")
    assert len({colour for colour, _ in seen}) == len({shape for _, shape in seen}) == 3


# -- everybody


@pytest.mark.parametrize("width", [390, 1440])
def test_axe_finds_nothing(show: Show, width: int) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    facts = made_up(estimated=True, missing=("something",))
    page = show(facts, made_up(name="other"), width=width, color_scheme="dark" if width == 390 else "light")
    page.evaluate("openForPrint(); selectLayer(2)")
    found = axe.Axe().run(page).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"][:200]) for each in found] == []


def test_without_scripts_figures_and_tables_are_there(show: Show) -> None:
    page = show(made_up(12, estimated=True), made_up(name="other"), script=False, width=390)
    text = page.inner_text("main")
    for words in (
        "1.74× faster",
        "Budget met",
        "model.onnx",
        "InferenceSession",
        "Slowest of",
        "Why not more",
        "block11.conv",
        "other",
    ):
        assert words in text
    for chart in ("#main-chart svg[role=img]", "#strip", "#runs svg[role=img]"):
        box = page.locator(chart).bounding_box()
        assert box is not None
        assert box["width"] > 300
        assert box["height"] > 150
    assert page.locator("#layers tbody tr").count() == 12
    assert page.locator("#strip [data-part=after] rect").count() > 5
    page.locator("#all-budgets > summary").click()
    assert page.locator("#all-budgets table").first.locator("tbody tr").count() == 61
    for dead in (".copy", ".slide", "#theme", ".tools"):
        assert page.locator(dead).filter(visible=True).count() == 0


WHOLE = """() => {
  const cut = [...document.querySelectorAll('main *')].filter((node) => node.getClientRects().length &&
    ['auto', 'scroll', 'hidden'].includes(getComputedStyle(node).overflowY) && node.scrollHeight > node.clientHeight + 2 &&
    !node.closest('svg') && !node.matches('caption'));
  const closed = [...document.querySelectorAll('details')].filter((node) => [...node.children].slice(1)
    .some((child) => !child.getClientRects().length || !child.checkVisibility({contentVisibilityAuto: true})));
  const wide = [...document.querySelectorAll('table, pre, figure')].filter((node) => node.getClientRects().length &&
    node.getBoundingClientRect().right > innerWidth + 1);
  return [cut, closed, wide].map((nodes) => nodes.map((node) => node.outerHTML.slice(0, 120)));
}"""


@pytest.mark.parametrize("script", [True, False])
def test_it_prints_whole(show: Show, script: bool) -> None:
    page = show(
        made_up(40, layer="stage.block{}.conv", estimated=True), script=script, width=718
    )  # A4 less its margins
    page.emulate_media(media="print")
    assert page.evaluate(WHOLE) == [[], [], []]
    written = page.pdf(format="A4")
    assert written.startswith(b"%PDF")
    assert 4 <= len(re.findall(rb"/Type\s*/Page\b", written)) <= 14
    assert not page.is_visible(".tools") if script else True


SLIDE = """() => {
  const slider = document.getElementById('budget'), times = [];
  for (let stop = 0; stop < 40; stop++) {
    const began = performance.now();
    slider.value = String(stop);
    slider.dispatchEvent(new Event('input', { bubbles: true }));
    void document.body.offsetHeight;
    times.push(performance.now() - began);
  }
  return times.sort((one, other) => one - other)[20];
}"""


@pytest.mark.slow
def test_the_slider_is_quick_at_three_hundred_layers(show: Show) -> None:
    page = show(made_up(300, estimated=True))
    page.evaluate("selectLayer(5)")
    taken: Any = page.evaluate(SLIDE)
    print(f"{taken:.1f} ms for a step of the slider")
    assert taken < 50
