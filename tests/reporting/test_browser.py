"""The report in a real browser: no errors, a live slider, keyboard, contrast, phones, a hundred layers, two runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from layermerge.reporting.fact_records import RunFacts
from layermerge.reporting.facts import gather
from layermerge.reporting.page import write_page
from reporting.report_runs import NASTY, finished_run, made_up

sync_api = pytest.importorskip("playwright.sync_api", reason="browser tests are left out: playwright is not installed")
CHROMIUM = Path("/usr/bin/chromium")
if not CHROMIUM.exists():
    pytest.skip(f"browser tests are left out: {CHROMIUM} is not there", allow_module_level=True)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
Open = Callable[..., "Page"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens facts as a page; whatever the browser complains of or asks the network for fails the test."""
    complaints: list[str] = []
    contexts = []

    def open_page(
        *runs: RunFacts, width: int = 1200, scheme: Literal["light", "dark"] = "light", script: bool = True
    ) -> Page:
        address = write_page(runs or (made_up(),), tmp_path / "report.html").as_uri()
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=script
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"console {message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.on(
            "request",
            lambda asked: None if asked.url in (address, "data:,") else complaints.append(f"request: {asked.url}"),
        )
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def text_of(page: Page, selector: str) -> str:
    return str(page.inner_text(selector))


def fits(page: Page) -> bool:
    return bool(
        page.evaluate(
            "Math.max(document.documentElement.scrollWidth, document.querySelector('main').scrollWidth) <= innerWidth"
        )
    )


# -- the slider


def test_the_slider_changes_diagram_and_figures_by_keyboard(show: Open) -> None:
    page = show(made_up(12))
    assert "60.0 %" in text_of(page, "#budget-text")
    before = page.inner_html("#diagram"), text_of(page, "#figures"), text_of(page, "#time")
    page.focus("#budget")
    page.keyboard.press("End")
    assert "100.0 %" in text_of(page, "#budget-text")
    after = page.inner_html("#diagram"), text_of(page, "#figures"), text_of(page, "#time")
    assert all(one != other for one, other in zip(before, after, strict=True))
    assert page.evaluate("document.activeElement.id") == "budget"
    assert page.locator("#diagram .merged").count() == 0
    assert page.locator("#diagram .removed").count() == 0
    page.keyboard.press("Home")
    assert page.locator("#diagram .merged").count() == 6
    assert page.locator("#diagram .removed").count() == 12
    assert page.get_attribute("#budget", "aria-valuetext") == "40.0 % · 8.00 ms of 20.0 ms"


def test_every_budget_shows_the_best_point_within_it(show: Open) -> None:
    facts = made_up(12, results=(), headline=None)
    page = show(facts)
    page.focus("#budget")
    page.keyboard.press("Home")
    frontier = facts.methods[0].frontier
    for _ in range(20):
        page.keyboard.press("ArrowRight")
        share = float((re.match(r"[\d.]+", text_of(page, "#budget-text")) or [""])[0])
        if share == 60.0:
            continue  # the choice that was made for this budget is shown there
        within = [each for each in frontier if each.point.latency_ms <= share / 5 + 1e-9]
        best = max(within, key=lambda each: each.point.latency_ms)
        merged = sum(len(facts.candidates[place].places) == 2 for place in best.candidates)
        assert page.locator("#diagram .merged").count() == merged
        assert f"{best.point.importance:.3f}" in text_of(page, "#figures")


def test_chosen_budgets_are_buttons_that_show_what_was_measured(show: Open) -> None:
    page = show()
    page.focus("#budget")
    page.keyboard.press("End")
    chip = page.locator("#chips button")
    assert chip.get_attribute("aria-pressed") == "false"
    chip.press("Enter")
    assert chip.get_attribute("aria-pressed") == "true"
    assert page.evaluate("document.activeElement.closest('#chips') !== null")
    assert "11.6 ms" in text_of(page, "#figures")
    assert "measured" in text_of(page, "#figures")
    assert "89.00 %" in text_of(page, "#figures")


def test_a_click_on_the_frontier_moves_the_budget(show: Open) -> None:
    page = show()
    box = page.locator("#frontiers svg").first.bounding_box()
    assert box is not None
    page.locator("#frontiers svg").first.click(position={"x": box["width"] - 40, "y": 100})
    share = float((re.match(r"[\d.]+", text_of(page, "#budget-text")) or [""])[0])
    assert share > 90


# -- the diagram


def test_a_hundred_layers(show: Open) -> None:
    for width in (390, 1440):
        page = show(made_up(100), width=width)
        assert page.locator("#diagram .layer").count() == 100
        inside = page.evaluate(
            """() => {
                const all = document.querySelector('#diagram svg').getBoundingClientRect();
                const boxes = [...document.querySelectorAll('#diagram .column')].map((node) => node.getBoundingClientRect());
                const apart = boxes.every((box, place) => place === 0 || box.top > boxes[place - 1].top ||
                    box.left >= boxes[place - 1].right - 0.5);
                return apart && boxes.every((box) => box.width > 20 && box.left >= all.left - 1 &&
                    box.right <= all.right + 1 && box.bottom <= all.bottom + 1);
            }"""
        )
        assert inside
        assert fits(page)


def test_two_methods_side_by_side_or_one(show: Open) -> None:
    page = show()
    lanes = page.locator("#diagram text.lane")
    assert {"before", "layermerge at 60 %", "layeronly at 60 %"} <= set(lanes.all_text_contents())
    assert page.locator("#frontiers svg[role=img]").count() == 2
    page.select_option("#method-b", "-1")
    assert not any(text.startswith("layeronly") for text in lanes.all_text_contents())
    assert page.locator("#frontiers svg[role=img]").count() == 1
    page.select_option("#method-a", "1")
    assert any(text.startswith("layeronly") for text in lanes.all_text_contents())


def test_every_layer_tells_its_story_by_pointer_and_by_keyboard(show: Open) -> None:
    page = show(made_up(12))
    page.locator("#diagram .layer").nth(5).hover()
    assert "block5.conv" in text_of(page, "#details")
    page.locator("#diagram .layer").nth(5).click()
    for key, name in (("ArrowRight", "block6."), ("ArrowLeft", "block5."), ("Home", "block0."), ("End", "block11.")):
        page.keyboard.press(key)
        assert name in text_of(page, "#details")
        assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith(name)
    told = page.locator("#diagram .layer").nth(0).get_attribute("aria-label") or ""
    assert "3×3 conv, 16 to 16 channels" in told
    assert "layermerge at 60 %: #0 to #1 merge into one 5×5, 0.500 ms" in told
    assert "layeronly at 60 %: removed" in told


# -- everybody can read it


@pytest.mark.parametrize("width", [320, 390, 768, 1440])
def test_nothing_is_wider_than_the_screen(show: Open, width: int) -> None:
    facts = made_up(
        30, layer="a.very.long.name.of.a.layer.without.any.space.in.it.or.almost.none.{}", directory="runs/" + "x" * 150
    )
    page = show(facts, facts, width=width)
    page.evaluate("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    assert fits(page)


def test_the_page_follows_the_width(show: Open) -> None:
    page = show(made_up(40), width=1440)
    tall = page.evaluate("document.querySelector('#diagram svg').clientHeight")
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_function(f"document.querySelector('#diagram svg').clientHeight > {tall}")
    assert fits(page)


CONTRAST = """() => {
  const parse = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return n.length > 3 ? n : [...n.slice(0, 3), 1]; };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const light = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => { v /= 255;
    return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const fill = (selector) => parse(getComputedStyle(document.querySelector(selector)).fill);
  const paper = (node) => { for (; node; node = node.parentElement) {
    const own = parse(getComputedStyle(node).backgroundColor); if (own[3] === 1) return own; } return [255, 255, 255, 1]; };
  const ground = (node) => {
    if (node.classList.contains('on')) return fill('#diagram .merged');
    if (node.classList.contains('on-kept')) return fill('#diagram .kept');
    if (node.classList.contains('lane')) return over(fill('.layer[aria-selected="true"] .column'), paper(node));
    return paper(node);
  };
  document.querySelectorAll('details').forEach((node) => { node.open = true; });
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || ['SCRIPT', 'STYLE', 'NOSCRIPT', 'title'].includes(node.tagName)) continue;
    if (!node.getClientRects().length || node.closest('.skip')) continue;
    const style = getComputedStyle(node), inSvg = node instanceof SVGElement;
    found.push([ratio(parse(inSvg ? style.fill : style.color), ground(node)), walk.currentNode.data.trim().slice(0, 30)]);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_both_themes(show: Open, scheme: str) -> None:
    page = show(made_up(missing=("something",)), made_up(name="other"), scheme=scheme)
    found = page.evaluate(CONTRAST)
    assert len(found) > 150
    assert [entry for entry in found if entry[0] < 4.5] == []


FOCUSABLE = "a[href], button, select, input, summary, [tabindex='0']"
NAMED = """(node) => {
  const label = node.labels && node.labels.length ? node.labels[0].textContent : '';
  return (node.getAttribute('aria-label') || label || node.textContent).trim();
}"""


def test_everything_can_be_reached_and_has_a_name(show: Open) -> None:
    page = show(made_up(), made_up(name="other"), width=390)
    expected = page.locator(FOCUSABLE).filter(visible=True)
    names = [expected.nth(place).evaluate(NAMED) for place in range(expected.count())]
    assert len(names) > 10
    assert all(names)
    page.evaluate("document.querySelectorAll('*').forEach((node, place) => { node.dataset.place = place; })")
    wanted = {expected.nth(place).get_attribute("data-place") for place in range(expected.count())}
    reached = set()
    for _ in range(len(names) + 5):
        page.keyboard.press("Tab")
        place = page.evaluate("document.activeElement.dataset.place")
        reached.add(place)
        ring = page.evaluate(
            """() => { const node = document.activeElement, ring = node.querySelector('.column');
                return ring ? getComputedStyle(ring).stroke : getComputedStyle(node).outlineStyle; }"""
        )
        assert ring != "none" or page.evaluate("document.activeElement === document.body")
    assert wanted <= reached


def test_pictures_and_tables_are_named(show: Open) -> None:
    page = show(made_up(), made_up(name="other"))
    for selector in ("svg[role=img]", "svg[role=listbox]", "table", "section[aria-labelledby]"):
        assert page.locator(selector).count() > 0
    for node in page.locator("svg[role=img], svg[role=listbox], table").all():
        assert node.get_attribute("aria-label")
    bare = (
        "[...document.querySelectorAll('svg')].filter((n) => !n.getAttribute('role') && !n.getAttribute('aria-hidden'))"
    )
    assert page.evaluate(f"{bare}.length") == 0


def test_colours_can_be_chosen(show: Open) -> None:
    page = show(scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.click("#theme")
    assert (page.inner_text("#theme"), page.evaluate(ground)) == ("Light", light)
    page.click("#theme")
    assert page.inner_text("#theme") == "Dark"
    assert page.evaluate(ground) != light
    page.reload()
    assert page.inner_text("#theme") == "Dark"
    dark = show(scheme="dark")
    assert dark.evaluate(ground) == page.evaluate(ground)
    dark.emulate_media(media="print")
    assert dark.evaluate(ground) == light
    assert not dark.is_visible("#theme")


def test_without_scripts_it_says_so(show: Open) -> None:
    page = show(script=False)
    assert "JavaScript" in text_of(page, "noscript")
    assert "result.json" in text_of(page, "noscript")


# -- what it shows


def test_two_runs_are_compared(show: Open) -> None:
    page = show(made_up(name="first"), made_up(20, name="second"))
    assert page.is_visible("#runs-section")
    assert page.locator("#runs-table tbody tr").count() == 2
    assert text_of(page, "#title") == "first"
    page.select_option("#run", "1")
    assert text_of(page, "#title") == "second"
    assert page.locator("#diagram .layer").count() == 20
    assert not show().is_visible("#runs-section")


def test_names_are_shown_as_they_are(show: Open) -> None:
    page = show(made_up(name=NASTY, layer=NASTY, directory=NASTY, missing=(NASTY,)))
    assert text_of(page, "#title") == NASTY
    assert NASTY in text_of(page, "#details")
    assert NASTY in text_of(page, "#missing")
    assert page.locator("img").count() == 0


def test_every_section_of_a_real_run(show: Open) -> None:
    facts = gather(finished_run())
    page = show(facts, width=390)
    headline = text_of(page, "#big")
    best = facts.results[facts.headline or 0]
    assert f"{best.measured_ms:.2f}" in headline
    assert f"{100 * best.score.value:.2f}" in headline
    assert f"{best.original_ms / best.measured_ms:.2f}×" in headline
    for name in ("accuracy", "predicted", "recovery", "cost", "reasons", "how"):
        assert page.is_visible(f"#{name}-section")
    assert page.locator("#predicted-table tbody tr").count() == 3
    assert not page.is_visible("#missing .note")
    assert fits(page)


def partial(**changes: Any) -> RunFacts:
    nothing: dict[str, Any] = {"results": (), "headline": None, "curves": (), "costs": (), "reasons": ()}
    return made_up(**nothing | {"missing": ("no result yet",)} | changes)


def test_runs_that_are_not_finished(show: Open) -> None:
    methods = tuple(replace(method, choices=()) for method in made_up().methods)
    page = show(partial(methods=methods))
    assert "no result yet" in text_of(page, "#missing")
    assert page.is_visible("#budget")
    assert not page.is_visible("#accuracy-section")
    none = tuple(replace(method, frontier=()) for method in methods)
    layers = tuple(replace(layer, latency_ms=None) for layer in made_up().layers)
    unmeasured: dict[str, Any] = {"original_ms": None, "fixed_ms": None, "scale": None, "original_score": None}
    facts = partial(methods=none, latency_setting={}, **unmeasured)
    page = show(replace(facts, layers=layers))
    assert not page.is_visible("#budget")
    assert page.locator("#diagram .layer").count() == 12
    assert not page.is_visible("#time")
