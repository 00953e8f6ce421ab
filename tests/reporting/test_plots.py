"""Pictures: files that hold what was given, drawn without touching the caller's matplotlib."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from layermerge.errors import LayerMergeError, MissingPackage, PlotError
from layermerge.reporting.plots import MethodPoint, RecoveryCurve, picture, plot_accuracy, plot_recovery, styles

PNG = b"\x89PNG\r\n\x1a\n"
METHODS = ("merging", "removing", "both", "narrower", "student", "random")
POINTS = [
    MethodPoint(
        method, budget, 20 * share, 20.0, 70 + 5 * share + place, 69 + 5 * share + place, 72 + 5 * share + place
    )
    for place, method in enumerate(METHODS)
    for budget, share in (("80%", 0.8), ("60%", 0.6), ("40%", 0.4))
]
CONTROLS = [
    MethodPoint("original", "100%", 20.0, 20.0, 81.0, control=True),
    MethodPoint("original, fine-tuned", "100%", 20.0, 20.0, 82.0, 81.5, 82.5, control=True),
]


def words(path: Path) -> set[str]:
    """The texts of a picture; matplotlib leaves each as a comment beside its outlines."""
    return set(re.findall(r"<!-- (.*?) -->", path.read_text(encoding="utf-8")))


def test_accuracy_names_methods_axes_and_speed_ups(tmp_path: Path) -> None:
    path = plot_accuracy([*CONTROLS, *POINTS], tmp_path / "new" / "accuracy.svg", score="top-1 (%)")
    assert words(path) >= {*METHODS, "original", "original, fine-tuned", "measured latency (ms)", "top-1 (%)"}
    assert words(path) >= {"1x", "2x", "speed-up over the original (20 ms)"}
    assert [file.name for file in path.parent.iterdir()] == ["accuracy.svg"]


def test_recovery_names_every_curve(tmp_path: Path) -> None:
    points = tuple((float(epoch), 60.0 + epoch) for epoch in range(4))
    curves = [*(RecoveryCurve(method, "60%", points) for method in METHODS), RecoveryCurve("short", "5ms", points[:1])]
    named = {f"{method} 60%" for method in METHODS} | {"short 5ms"}
    assert words(plot_recovery(curves, tmp_path / "recovery.svg")) >= {*named, "epoch of fine-tuning", "accuracy (%)"}


def test_either_kind_of_file_and_the_same_one_twice(tmp_path: Path) -> None:
    assert plot_accuracy(POINTS, tmp_path / "a.png").read_bytes().startswith(PNG)
    first = plot_accuracy(POINTS, tmp_path / "a.svg").read_bytes()
    assert plot_accuracy(POINTS, tmp_path / "b.svg").read_bytes() == first


def test_every_point_and_interval_is_where_it_belongs(tmp_path: Path) -> None:
    from layermerge.reporting import plots

    with picture(tmp_path / "a.png") as axes:
        plots._draw_method(axes, "both", POINTS[3:6], *next(styles()))
        line, (bars,) = axes.containers[0][0], axes.containers[0][2]
        assert list(line.get_xdata()) == [point.latency_ms for point in POINTS[3:6]]
        assert list(line.get_ydata()) == [point.score for point in POINTS[3:6]]
        assert [tuple(ends[:, 1]) for ends in bars.get_segments()] == [
            (pytest.approx(point.low), pytest.approx(point.high)) for point in POINTS[3:6]
        ]


def test_looks_never_run_out_and_differ_as_long_as_they_can(tmp_path: Path) -> None:
    looks = styles()
    assert len({next(looks) for _ in range(24)}) == 24
    many = [RecoveryCurve(str(place), "60%", ((0, 1.0), (1, 2.0))) for place in range(40)]
    plot_recovery(many, tmp_path / "many.png")


def test_curves_of_a_family_share_a_colour_and_no_two_look_alike(tmp_path: Path) -> None:
    from layermerge.reporting import plots

    curves = [RecoveryCurve(method, budget, ((0, 1.0),)) for budget in ("80%", "60%", "40%") for method in METHODS]
    looks = list(plots._looks([curve.method for curve in curves]))
    assert len(set(looks)) == len(curves)
    colours = [{look[0] for look, curve in zip(looks, curves, strict=True) if curve.method == m} for m in METHODS]
    assert all(len(each) == 1 for each in colours)
    assert plot_recovery(curves, tmp_path / "a.png").is_file()


def test_the_callers_matplotlib_is_left_alone(tmp_path: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    plot_accuracy(POINTS, tmp_path / "a.png")
    assert dict(matplotlib.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


@pytest.mark.parametrize("name", ["a.pdf", "a", "a.PNG"])
def test_other_kinds_of_file_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(PlotError, match=rf"cannot draw '{name}'; give a name that ends in \.png or \.svg"):
        plot_accuracy(POINTS, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    with pytest.raises(PlotError, match="nothing to draw: no points were given"):
        plot_accuracy([], tmp_path / "a.png")
    with pytest.raises(PlotError, match="nothing to draw: no curves given"):
        plot_recovery([], tmp_path / "a.png")
    with pytest.raises(PlotError, match="curve 'b 60%' has no point; leave it out"):
        plot_recovery([RecoveryCurve("a", "60%", ((0, 1.0),)), RecoveryCurve("b", "60%", ())], tmp_path / "a.png")
    with pytest.raises(
        LayerMergeError, match="'lost' at 60% has no latency above zero or no finite score; leave it out"
    ):
        plot_accuracy([MethodPoint("lost", "60%", 1.0, 2.0, float("nan"))], tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingPackage, match=r"not installed; try: pip install 'layermerge\[plots\]'$"):
        plot_accuracy(POINTS, tmp_path / "a.png")
