"""The report in a real browser: no errors, a live slider, layers and their candidates, saving, phones, three hundred layers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from layermerge.reporting.facts import gather
from reporting.conftest import Show
from reporting.report_runs import NASTY, finished_run, made_up

if TYPE_CHECKING:
    from playwright.sync_api import Page


def fits(page: Page) -> bool:
    return bool(
        page.evaluate(
            "Math.max(document.documentElement.scrollWidth, document.querySelector('main').scrollWidth) <= innerWidth"
        )
    )


def share(page: Page) -> float:
    return float((re.match(r"[\d.]+", page.inner_text("#budget-text")) or [""])[0])


# -- the slider


def test_the_slider_drives_chart_network_and_command_by_keyboard(show: Show) -> None:
    page = show(made_up(12))
    assert share(page) == 60

    def shown() -> list[str]:
        line = page.get_attribute("[data-part=live-line]", "x1") or ""
        rest = [page.inner_text(f"#{name}") for name in ("figures", "command", "went", "time", "layers")]
        return [line, page.inner_html("#strip"), *rest]

    before = shown()
    page.focus("#budget")
    page.keyboard.press("Home")
    assert all(one != other for one, other in zip(before, shown(), strict=True))
    assert page.evaluate("document.activeElement.id") == "budget"
    assert page.get_attribute("#budget", "aria-valuetext") == "40 % · 8.00 ms, 8.00 ms, predicted"
    assert page.locator("#strip [data-part=after] rect.merged").count() == 6
    page.keyboard.press("End")
    assert share(page) == 100
    assert page.locator("#strip rect.merged, #strip rect.removed").count() == 0
    assert page.locator("#strip [data-part=after] rect.kept").count() == 12


def test_every_budget_shows_the_best_point_within_it(show: Show) -> None:
    facts = made_up(12)
    page = show(facts)
    page.focus("#budget")
    page.keyboard.press("Home")
    frontier = facts.methods[0].frontier
    for _ in range(30):
        if share(page) != 60:  # there, what was chosen and measured is shown
            within = [each for each in frontier if each.point.latency_ms <= share(page) / 5 + 1e-9]
            best = max(within, key=lambda each: each.point.latency_ms)
            merged = sum(len(facts.candidates[place].places) == 2 for place in best.candidates)
            assert page.locator("#strip [data-part=after] rect.merged").count() == merged
            assert (
                f"{best.point.latency_ms:.{1 if best.point.latency_ms >= 10 else 2}f} ms, predicted"
                in page.inner_text("#figures")
            )
            assert f"--budget {share(page):g}%" in page.inner_text("#command")
        page.keyboard.press("ArrowRight")


def test_one_latency_for_one_thing(show: Show) -> None:
    """What was exported is measured once more than what was chosen: the page shows the former, wherever it names the result."""
    facts = made_up()
    assert facts.methods[0].choices[0].choice.solution.measured_ms == 11.6
    assert facts.results[1].report.measured_ms == 11.5
    page = show(facts)
    page.evaluate("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    assert "11.5 ms measured" in page.inner_text("#verdict")
    assert "11.5 ms, measured" in page.inner_text("#figures")
    assert "11.5 ms measured" in page.inner_html("#strip")
    for name in ("#use", "#explore", "#predicted table"):
        assert "11.5 ms" in page.inner_text(name)
    assert not re.search(r"11\.6 ms,? measured", page.content().partition('id="facts"')[0])
    assert "11.6" not in page.inner_text("#predicted table")


def test_a_click_on_the_chart_moves_the_budget(show: Show) -> None:
    page = show()
    picture = page.locator("#main-chart svg[role=img]")
    box = picture.bounding_box()
    assert box is not None
    picture.click(position={"x": 0.95 * box["width"], "y": 100})
    assert share(page) > 90


def test_another_method(show: Show) -> None:
    page = show()
    page.select_option("#method", "1")
    assert share(page) == 60
    assert page.locator("#strip [data-part=after] rect.merged").count() == 0
    assert page.locator("#strip [data-part=before] rect.removed").count() == 10


def test_estimates_are_a_band_and_said_to_be_estimates(show: Show) -> None:
    page = show(made_up(estimated=True))
    assert page.locator("#main-chart .band .area").count() == 2  # in the chart and in its legend
    page.click("[data-budget='45%']")
    assert re.search(r"about 8\d\.\d\d % \(\d\d\.\d\d to \d\d\.\d\d\), estimated", page.inner_text("#figures"))
    assert "estimated" in page.inner_text("#why")
    bare = show(made_up())
    assert bare.locator("#main-chart .band").count() == 0
    bare.click("[data-budget='45%']")
    assert "not measured" in bare.inner_text("#figures")
    assert not bare.is_visible("#main-chart [data-part=live-ring]")


# -- layers


def test_a_layer_opens_its_candidates_ranked_by_what_they_save(show: Show) -> None:
    facts = made_up(12)
    page = show(facts)
    page.locator("#strip [data-part=before] rect[data-layer='5']").click()
    assert "block5.conv" in page.inner_text("#details .layer-head")
    rows = page.locator("#details tbody tr")
    own = [each for each in facts.candidates if each.candidate.start <= 5 < each.candidate.end]
    assert rows.count() == len(own)
    shown = [rows.nth(place).locator("td").first.inner_text() for place in range(rows.count())]
    paying = [each for each in own if each.saved_ms and each.change]
    ranked = sorted(paying, key=lambda each: (each.saved_ms or 0.0) / (each.change or 1.0))  # changes are below 0
    assert shown[:3] == [each.words for each in ranked]
    assert page.locator("#details tr.chosen").count() == 1
    assert "score lost (points)" in page.inner_text("#details thead")
    page.get_by_role("button", name="Next layer").press("Enter")
    assert "block6.conv" in page.inner_text("#details .layer-head")
    assert page.evaluate("document.activeElement.textContent") == "next ›"
    page.get_by_role("button", name="score lost").click()
    lost = [float(text) for text in page.locator("#details tbody td:nth-child(4)").all_inner_texts()]
    assert lost == sorted(lost, reverse=True)


def test_layers_are_searched_sorted_and_saved(show: Show) -> None:
    page = show(made_up(30, layer='stage "a", block{}'))
    page.fill("input[type=search]", "block7")
    assert page.locator("#layers tbody tr").filter(visible=True).count() == 1
    assert "1 of 30 layers" in page.inner_text("#network")
    page.fill("input[type=search]", "")
    heading = page.locator("#layers thead th").nth(4)
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    taken = [float(text.split()[0]) for text in page.locator("#layers tbody td:nth-child(5)").all_inner_texts()]
    assert taken == sorted(taken, reverse=True)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save the table as CSV").click()
    text = Path(saved.value.path()).read_text(encoding="utf-8")
    assert saved.value.suggested_filename == "made-up-layers.csv"
    assert len(text.splitlines()) == 31
    assert '"stage ""a"", block7"' in text
    page.locator("#layers button.link").first.click()
    assert page.is_visible("#details tbody tr")


def test_charts_are_saved_as_svg_and_png(show: Show) -> None:
    page = show(made_up(estimated=True), made_up(name="other"))
    page.evaluate("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    figures = page.locator("figure.chart").filter(visible=True)
    assert figures.count() == 5
    for figure in figures.all():
        assert figure.get_by_role("button", name="PNG").count() == 1
        text = figure.evaluate("(node) => pictureOf(node).text")
        assert text.startswith("<svg xmlns=")
        assert "var(--" not in text
        assert set(figure.locator("svg[role=img] text").all_text_contents()) <= set(
            re.findall(r">([^<>]+)</text>", text)
        )
        assert set(figure.locator(".legend li").all_text_contents()) <= set(re.findall(r">([^<>]+)</text>", text))
    for kind, begin in (("SVG", b"<svg xmlns="), ("PNG", b"\x89PNG")):
        with page.expect_download() as saved:
            figures.nth(1).get_by_role("button", name=kind).click()
        assert Path(saved.value.path()).read_bytes().startswith(begin)
        assert saved.value.suggested_filename == f"made-up-score-latency.{kind.lower()}"


def test_code_is_copied(show: Show) -> None:
    page = show(permissions=["clipboard-read", "clipboard-write"])
    page.locator("#command .copy").click()
    page.wait_for_function("document.querySelector('#command .copy').textContent === 'Copied'")
    assert page.evaluate("navigator.clipboard.readText()") == page.inner_text("#command code")


# -- everybody can read it


@pytest.mark.parametrize("width", [320, 390, 768, 1440])
def test_nothing_is_wider_than_the_screen(show: Show, width: int) -> None:
    facts = made_up(
        30, layer="a.very.long.name.of.a.layer.without.any.space.in.it.or.almost.none.{}", directory="runs/" + "x" * 150
    )
    page = show(facts, facts, width=width)
    page.evaluate("document.querySelectorAll('details').forEach((node) => { node.open = true; }); selectLayer(3)")
    assert fits(page)


def test_three_hundred_layers(show: Show) -> None:
    for width in (390, 1440):
        page = show(made_up(300), width=width)
        inside = page.evaluate(
            """() => {
                const all = document.querySelector('#strip').getBoundingClientRect();
                const nodes = [...document.querySelectorAll('#strip [data-part=before] rect')];
                const boxes = nodes.map((node) => node.getBoundingClientRect());
                const apart = boxes.every((box, place) => place === 0 || box.left >= boxes[place - 1].right - 0.6);
                const inside = boxes.every((box) => box.left >= all.left - 1 && box.right <= all.right + 1);
                return boxes.length === 301 && apart && inside;
            }"""
        )
        assert inside
        assert page.locator("#strip .arcs ellipse").count() == 100
        assert fits(page)


FOCUSABLE = "a[href], button:enabled, select, input, summary, [tabindex='0']"
NAMED = """(node) => {
  const label = node.labels && node.labels.length ? node.labels[0].textContent : '';
  return (node.getAttribute('aria-label') || label || node.textContent).trim();
}"""


def test_everything_can_be_reached_and_has_a_name(show: Show) -> None:
    page = show(made_up(), made_up(name="other"), width=390)
    expected = page.locator(FOCUSABLE).filter(visible=True)
    names = [expected.nth(place).evaluate(NAMED) for place in range(expected.count())]
    assert len(names) > 30
    assert all(names)
    page.evaluate("document.querySelectorAll('*').forEach((node, place) => { node.dataset.place = place; })")
    wanted = {expected.nth(place).get_attribute("data-place") for place in range(expected.count())}
    reached = set()
    for _ in range(len(names) + 5):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.dataset.place"))
        ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert ring != "none" or page.evaluate("document.activeElement === document.body")
    assert wanted <= reached


def test_colours_can_be_chosen(show: Show) -> None:
    page = show(color_scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.click("#theme")
    assert (page.inner_text("#theme"), page.evaluate(ground)) == ("Light", light)
    page.click("#theme")
    assert page.inner_text("#theme") == "Dark"
    assert page.evaluate(ground) != light
    page.reload()
    assert page.inner_text("#theme") == "Dark"
    dark = show(color_scheme="dark")
    assert dark.evaluate(ground) == page.evaluate(ground)
    dark.emulate_media(media="print")
    assert dark.evaluate(ground) == light
    assert not dark.is_visible("#theme")


# -- what it shows


def test_several_runs_are_told_apart(show: Show) -> None:
    page = show(made_up(name="first"), made_up(20, name="second"))
    assert page.locator("#runs tbody tr").count() == 2
    headings = page.locator("#runs thead th").all_inner_texts()
    assert len(set(headings)) == len(headings)
    legend = page.locator("#runs .legend li").all_inner_texts()
    assert {"first: layermerge", "first: layeronly", "second: layermerge", "second: layeronly"} <= set(legend)
    # Both runs reached the same: the second's marks are rings around the first's.
    sizes = page.locator("#runs .series .mark").evaluate_all("(nodes) => nodes.map((node) => node.getBBox().width)")
    assert len({round(size) for size in sizes[:4]}) >= 2
    assert page.locator("#runs figure > svg .mark.ring").count() == 2
    assert page.inner_text("#title") == "first"
    page.select_option("#run", "1")
    assert page.inner_text("#title-1") == "second"
    assert not page.is_visible("#title")
    assert page.locator("#strip-1 [data-part=before] rect[data-layer]").count() == 20
    page.focus("#budget-1")
    page.keyboard.press("Home")
    assert "--budget 40%" in page.inner_text("#command-1")
    assert show().locator("#runs").count() == 0


def test_names_are_shown_as_they_are(show: Show) -> None:
    page = show(made_up(name=NASTY, layer=NASTY, directory=NASTY, missing=(NASTY,)))
    assert page.inner_text("#title") == NASTY
    assert NASTY in page.inner_text("#missing")
    page.locator("#layers button.link").first.click()
    assert NASTY in page.inner_text("#details")
    assert page.locator("img").count() == 0


def test_every_part_of_a_real_run(show: Show) -> None:
    facts = gather(finished_run())
    page = show(facts, width=390)
    best = facts.results[facts.headline or 0].report
    card = page.inner_text("#verdict")
    assert f"{best.measured_ms:.2f}" in card
    assert f"{100 * best.score.value:.2f}" in card
    assert f"{best.original_ms / best.measured_ms:.2f}×" in card
    assert "paired 95 % interval" in card
    for name in ("use", "explore", "network", "why", "reproduce", "evidence"):
        assert page.is_visible(f"#{name}")
    assert page.locator("#strip .arcs ellipse").count() == 1
    assert page.locator("#missing .note").count() == 0
    assert fits(page)


def test_runs_that_are_not_finished(show: Show) -> None:
    nothing: dict[str, Any] = {"results": (), "headline": None, "curves": (), "costs": (), "reasons": ()}
    methods = tuple(
        replace(method, choices=(), stops=tuple(stop for stop in method.stops if not stop.measured))
        for method in made_up(results=()).methods
    )
    page = show(made_up(**nothing, missing=("no result yet",), methods=methods))
    assert "No result yet" in page.inner_text("#verdict")
    assert "no result yet" in page.inner_text("#missing")
    assert page.is_visible("#budget")
    none = tuple(replace(method, frontier=(), stops=()) for method in methods)
    layers = tuple(replace(layer, latency_ms=None) for layer in made_up().layers)
    unmeasured: dict[str, Any] = {"original_ms": None, "fixed_ms": None, "scale": None, "original_score": None}
    facts = made_up(**nothing, **unmeasured, methods=none, latency_setting={})
    page = show(replace(facts, layers=layers))
    assert page.locator("#budget").count() == 0
    assert page.locator("#strip rect[data-layer]").count() == 12
    assert "not measured yet" in page.inner_html("#strip")
    page.locator("#layers button.link").first.click()
    assert page.is_visible("#details")
