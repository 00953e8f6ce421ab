"""Explanation tables: what `explain` prints of a network, and of one layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from layermerge.cli.layout import Column, bold, show_table, show_text
from layermerge.reporting.explaining import Explanation, LayerExplanation, Loss, Obstacle, Offer
from layermerge.reporting.html.strip import geometry
from layermerge.reporting.numbers import ms, plural, share

if TYPE_CHECKING:
    from layermerge.reporting.change_words import ChangeWords

_LISTED, _OFFERS = 12, 24
_OVERVIEW = (
    Column("#", "figure"),
    Column("layer", "name", least=14),
    Column("convolution", "text", missed=1),
    Column("takes", "figure", missed=4),
    Column("share", "figure", missed=3),
    Column("removable", missed=2),
    Column("best offer", "text", least=19),
    Column("saves", "figure"),
    Column("points lost", "figure"),
    Column("score lost", "figure"),
    Column("", "figure"),
    Column("in the way", missed=5),
)


def show_overview(name: str, found: Explanation, words: ChangeWords | None) -> None:
    """The layers that take most, with the best that is offered, and what stands in the way."""
    notes: dict[str, tuple[str, Obstacle]] = {}
    listed = found.heaviest[:_LISTED]
    rows = [_row(layer, notes, words) for layer in listed]
    of = "the time" if found.timed else "the multiplications"
    covered = share(sum(layer.share for layer in listed))
    removable = sum(layer.facts.removable for layer in found.layers)
    whole = f" The network takes {ms(found.original_ms)}" if found.original_ms is not None else ""
    fixed = f", of which {ms(found.fixed_ms)} no choice changes" if found.fixed_ms is not None else ""
    show_text(
        f"{name}: {plural(len(found.layers), 'layer')}, {removable} of them can be removed by themselves.{whole}{fixed}"
        f"{'.' if whole else ''} The {len(listed)} that take most of {of}, {covered} in all:"
    )
    print()
    columns = [replace(each, title=words.title) if words and not each.title else each for each in _OVERVIEW]
    show_table(columns, rows)
    if notes:
        print(f"\n{bold('in the way')}")
        for letter, obstacle in notes.values():
            show_text(f"{letter}  {_told(obstacle)}", behind="   ")
    if not found.timed:
        print()
        show_text(
            "Its layers were not timed yet: shares are of multiplications, and what is saved and lost is not known."
        )


def _row(layer: LayerExplanation, notes: dict[str, tuple[str, Obstacle]], words: ChangeWords | None) -> list[str]:
    best, facts = layer.best, layer.facts
    letters = [
        notes.setdefault(each.plain or each.reason, (chr(ord("a") + len(notes)), each))[0] for each in layer.obstacles
    ]
    return [
        str(layer.place),
        facts.layer.name,
        geometry(facts),
        "" if facts.latency_ms is None else ms(facts.latency_ms),
        share(layer.share),
        "fixed" if facts.fixed else "yes" if facts.removable else "no",
        _short(best),
        ms(best.facts.saved_ms) if best else "",
        loss_text(best.loss) if best and best.loss and best.loss.kind == "share" else "",
        loss_text(best.loss) if best and best.loss and best.loss.kind != "share" else "",
        _change(best, words) if best and not best.loss else "",
        " ".join(sorted(dict.fromkeys(letters))),
    ]


def _short(offer: Offer | None) -> str:
    """By the layers' numbers."""
    if offer is None:
        return ""
    candidate = offer.facts.candidate
    if len(candidate.layers) == 1:
        return offer.facts.words
    into = f"become one {'x'.join(map(str, candidate.spec.kernel))}" if candidate.spec else "removed"
    gone = len(candidate.removed) if candidate.spec else 0
    return f"#{candidate.start} to #{candidate.end - 1} {into}{f', {gone} removed' if gone else ''}"


def _change(offer: Offer, words: ChangeWords | None) -> str:
    change = offer.facts.change
    return "" if words is None or change is None else f"{words.scale * change + 0.0:.{words.digits}f}"


def loss_text(loss: Loss) -> str:
    """Points of a share; of a loss, by how much it rises."""
    if loss.kind == "share":
        return f"{100 * loss.fall:.1f} ± {100 * loss.error:.1f}"
    return f"{loss.fall:.3g} ± {loss.error:.2g}"


def show_layer(layer: LayerExplanation, words: ChangeWords | None) -> None:
    """All that can be done with a layer, by what it saves, and what cannot."""
    facts = layer.facts
    taken = f"{ms(facts.latency_ms)}, {share(layer.share)} of the network" if facts.latency_ms is not None else ""
    of = taken or f"{share(layer.share)} of the network's multiplications"
    show_text(f"{facts.layer.name} (#{layer.place}): {geometry(facts)}; {of}")
    menu = [offer for offer in layer.offers if offer.off is None]
    shown = list(layer.worthwhile) or menu
    print(f"\n{bold('what can be done with it')}{', by what it saves' if facts.latency_ms is not None else ''}")
    _show_offers(shown, words)
    if layer.worthwhile and len(menu) > len(shown):
        show_text(f"and {len(menu) - len(shown)} that save less and change the answers no less: --json lists them")
    if words and shown:
        print()
        show_text(f"{words.explanation} Layers are numbered as in plan.")
    _show_off([offer for offer in layer.offers if offer.off is not None])
    if layer.obstacles:
        print(f"\n{bold('what cannot')}")
    for obstacle in layer.obstacles:
        saves = f", which could save at most {ms(obstacle.at_most_ms)}" if obstacle.at_most_ms is not None else ""
        show_text(f"- {obstacle.what}{saves}: {_told(obstacle)}", behind="  ")


def _show_offers(offers: list[Offer], words: ChangeWords | None) -> None:
    if not offers:
        show_text("Nothing.")
        return
    estimated = any(offer.loss for offer in offers)
    change = words.title if words else ""
    columns = (
        Column("saves", "figure"),
        Column("points lost, estimated" if _points(offers) else "score lost, estimated", "figure"),
        Column(change, "figure", missed=1 if estimated else 0),
        Column("how", "text"),
    )
    rows = [
        [
            ms(offer.facts.saved_ms) if offer.facts.saved_ms is not None else "",
            loss_text(offer.loss) if offer.loss else "",
            _change(offer, words),
            _short(offer),
        ]
        for offer in offers[:_OFFERS]
    ]
    show_table(columns, rows)
    if len(offers) > _OFFERS:
        show_text(f"and {len(offers) - _OFFERS} more: --json lists all")


def _points(offers: list[Offer]) -> bool:
    return any(offer.loss and offer.loss.kind == "share" for offer in offers)


def _show_off(offers: list[Offer]) -> None:
    if not offers:
        return
    print(f"\n{bold('ruled out on this machine')}")
    for offer in offers[:3]:
        show_text(f"- {offer.facts.words}: {offer.off}", behind="  ")
    if len(offers) > 3:
        show_text(f"- and {len(offers) - 3} more")


def _told(obstacle: Obstacle) -> str:
    plain = f"{obstacle.plain} ({obstacle.reason})" if obstacle.plain else obstacle.reason
    return f"{plain} \u2192 {obstacle.change}" if obstacle.change else plain
