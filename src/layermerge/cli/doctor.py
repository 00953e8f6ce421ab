"""The verb that looks at the machine: doctor."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib import import_module, metadata
from typing import Any

import typer
from packaging.requirements import Requirement

from layermerge import __version__
from layermerge.cli.app import JsonOption, app, print_json
from layermerge.cli.layout import Column, show_table
from layermerge.cli.summary import show_next
from layermerge.errors import first_line

_Line = tuple[str, str, str]
"""A mark, what it is about, and what is said of it."""


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Show what is installed, which runtimes work here, and how steady the clock is. Takes about ten seconds.

    Example: layermerge doctor
    """
    facts: dict[str, Any] = {
        "layermerge": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": _torch(),
        "packages": _packages(),
    }
    usable = facts["torch"]["problem"] is None
    if usable:
        if sys.stderr.isatty():
            print("trying runtimes and the clock ...", file=sys.stderr)
        facts |= _tried()
    if as_json:
        print_json(facts)
    else:
        _show(facts)
    if not usable:
        raise typer.Exit(1)


def _torch() -> dict[str, str | None]:
    """Its version, and what keeps it from computing."""
    try:
        torch = import_module("torch")
    except Exception as error:  # a broken installation raises OSError, RuntimeError and others
        return {"version": None, "problem": f"{type(error).__name__}: {first_line(error)}"}
    return {"version": str(torch.__version__), "problem": None}


def _packages() -> dict[str, dict[str, dict[str, Any]]]:
    """By extra and name: which version of an optional package is there, and whether it is new enough.

    What is needed is what pip noted when layermerge was installed. After an update of an editable installation that may be
    older than pyproject.toml, until it is installed again, as updates of dependencies need anyway.
    """
    distribution = metadata.distribution("layermerge")
    extras = distribution.metadata.get_all("Provides-Extra") or []
    wanted = [Requirement(line) for line in distribution.requires or []]
    return {
        extra: {
            package.name: _look(package)
            for package in wanted
            if package.marker
            and package.marker.evaluate({"extra": extra})
            and not package.marker.evaluate({"extra": ""})
        }
        for extra in extras
        if extra != "dev"
    }


def _look(package: Requirement) -> dict[str, Any]:
    try:
        found = metadata.version(package.name)
    except metadata.PackageNotFoundError:
        found = None
    fine = found is not None and package.specifier.contains(found, prereleases=True)
    return {"installed": found, "needed": str(package.specifier), "fine": fine}


def _tried() -> dict[str, Any]:
    from dataclasses import asdict

    from layermerge.cli import checkup
    from layermerge.runtimes.instructions import instructions_here

    trials = checkup.try_runtimes()  # first: it needs a process that has not computed yet
    noise, integers = checkup.clock_noise(), instructions_here()
    return {
        "runtimes": [asdict(trial) for trial in trials],
        "processors": asdict(checkup.processors()),
        "integers": asdict(integers) | {"scheme": integers.scheme, "shown": str(integers)},
        "clock": {**asdict(noise), "spread": noise.spread, "verdict": noise.verdict},
    }


def _show(facts: dict[str, Any]) -> None:
    show_table((Column(""), Column("", "name"), Column("", "text")), list(_lines(facts)))
    if facts["torch"]["problem"] is None:
        show_next(("layermerge demo", "the whole way, on a small network that comes with the package"))


def _lines(facts: dict[str, Any]) -> Iterator[_Line]:
    yield "ok", "layermerge", facts["layermerge"]
    yield "ok", "python", f"{facts['python']} on {facts['platform']}"
    torch = facts["torch"]
    if torch["problem"] is None:
        yield "ok", "torch", torch["version"]
    else:
        yield "!", "torch", f"cannot be used: {torch['problem']}; install it again, see https://pytorch.org"
    yield "", "packages", "optional"
    for extra, packages in facts["packages"].items():
        yield _package_line(extra, packages)
    if torch["problem"] is None:
        yield from _tried_lines(facts)


def _package_line(extra: str, packages: dict[str, dict[str, Any]]) -> _Line:
    texts = []
    for name, found in packages.items():
        if found["installed"] is None:
            texts.append(f"{name} is missing")
        elif found["fine"]:
            texts.append(f"{name} {found['installed']}")
        else:
            texts.append(f"{name} {found['installed']} does not fit {found['needed']}")
    fine = all(found["fine"] for found in packages.values())
    advice = "" if fine else f"; try: pip install 'layermerge[{extra}]'"
    return "ok" if fine else "-", extra, f"{', '.join(texts)}{advice}"


def _tried_lines(facts: dict[str, Any]) -> Iterator[_Line]:
    yield "", "runtimes", "each built and ran a small network, or says why not"
    for trial in facts["runtimes"]:
        mark = {True: "ok", None: "!", False: "-"}[trial["works"]]
        yield mark, trial["runtime"], trial["version"] if trial["works"] else trial["reason"]
    yield "", "machine", ""
    found, clock = facts["processors"], facts["clock"]
    load = "" if found["load"] is None else f", load {found['load']:.1f}"
    yield "ok", "cpu", f"{found['usable_cpus']} of {found['cpus']} usable, torch takes {found['torch_threads']}{load}"
    integers = facts["integers"]
    needed = "" if integers["sums_in_32_bits"] else "; INT8 may be slower than float32, and weights get 7 bits"
    yield "ok" if integers["sums_in_32_bits"] else "-", "int8", f"{integers['shown']}, {integers['scheme']}{needed}"
    yield "ok" if found["omp_wait_policy"] else "-", "OMP_WAIT_POLICY", found["omp_wait_policy"] or "not set"
    yield "ok" if found["gpus"] else "-", "gpu", ", ".join(found["gpus"]) or "none that torch sees"
    scatter = (
        f"{clock['passes']} passes of {clock['median_ms']:.2f} ms, four in five within {clock['p10_ms']:.2f} to "
        f"{clock['p90_ms']:.2f} ms ({clock['spread']:.0%})"
    )
    yield "ok" if clock["verdict"] == "steady" else "!", "clock", f"{clock['verdict']}; {scatter}"
    for hint in found["hints"]:
        yield "!", "hint", hint
