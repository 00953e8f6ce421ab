"""A real browser for the tests of the report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from layermerge.reporting.fact_records import RunFacts
from layermerge.reporting.page import write_page
from reporting.report_runs import made_up

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

CHROMIUM = Path("/usr/bin/chromium")
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="browser tests are left out: playwright is missing")
    if not CHROMIUM.exists():
        pytest.skip(f"browser tests are left out: {CHROMIUM} is not there")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield launched
        launched.close()


class Show:
    """Opens facts as a page; what the browser complains of, or asks the network for, is kept."""

    def __init__(self, browser: Browser, folder: Path) -> None:
        self.browser, self.folder = browser, folder
        self.complaints: list[str] = []
        self.contexts: list[BrowserContext] = []

    def __call__(self, *runs: RunFacts, width: int = 1440, height: int = 900, script: bool = True, **more: Any) -> Page:
        address = write_page(runs or (made_up(),), self.folder / "report.html").as_uri()
        context = self.browser.new_context(
            viewport={"width": width, "height": height}, java_script_enabled=script, **more
        )
        self.contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: self.complaints.append(f"console {message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        page.on("request", lambda asked: self._asked(asked.url, address))
        page.goto(address)
        return page

    def _asked(self, url: str, address: str) -> None:
        """Pictures that the page makes of itself are data; nothing else may be asked for."""
        if url.partition("#")[0] != address and not url.startswith(("data:", "blob:")):
            self.complaints.append(f"request: {url}")


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Show]:
    opened = Show(browser, tmp_path)
    yield opened
    for context in opened.contexts:
        context.close()
    assert opened.complaints == []
