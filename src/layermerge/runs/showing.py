"""Showing: what a finished run leaves for people: its report, and a card beside each of its networks."""

from __future__ import annotations

from layermerge.reporting.facts import gather
from layermerge.reporting.model_card import write_cards
from layermerge.reporting.page import write_page
from layermerge.runs.context import Context
from layermerge.stages import stage


def show_run(context: Context) -> None:
    """Writes both from the same facts."""
    with stage("report", "write the report"):
        facts = gather(context.directory.path)
        write_page([facts], context.directory.page)
        write_cards(facts, context.settings.license)
