"""The learning curve: deterministic, self-contained, and honest about gaps."""

import subprocess
import sys
import xml.etree.ElementTree as ET

from nip_core.evaluation.split_metrics import SplitMetrics
from nip_core.report.plots import learning_curve_svg
from nip_study.parts.arms_figure import Mark, arms_svg


def measured(accuracy, interval, completeness, soundness):
    return SplitMetrics(
        accuracy=accuracy, accuracy_ci95=interval, completeness=completeness, soundness=soundness
    )


POINTS = [
    (0, measured(0.5, (0.45, 0.55), 0.6, 0.4)),
    (1, measured(0.8, (0.76, 0.84), 0.8, 0.8)),
]
SVG = "{http://www.w3.org/2000/svg}"


def test_the_same_numbers_give_the_same_bytes() -> None:
    assert learning_curve_svg(POINTS) == learning_curve_svg(POINTS)
    assert learning_curve_svg(POINTS) != learning_curve_svg(POINTS[:1])


def test_the_svg_is_xml_with_readable_text_that_follows_the_scheme() -> None:
    svg = learning_curve_svg(POINTS)
    root = ET.fromstring(svg)
    texts = ["".join(node.itertext()).strip() for node in root.iter(f"{SVG}text")]
    assert {"accuracy (95 % interval)", "completeness", "soundness", "chance"} <= set(texts)
    assert "80.0%" in root.attrib["aria-label"]
    assert "prefers-color-scheme:dark" in svg
    assert "currentColor" in svg
    assert "#010203" not in svg


def test_the_svg_s_rules_stay_inside_it() -> None:
    styles = "".join(node.text or "" for node in ET.fromstring(learning_curve_svg(POINTS)).iter(
        f"{SVG}style"))  # fmt: skip
    assert "#nip-learning-curve *{" in styles
    assert not styles.lstrip().startswith("*")
    assert "}*{" not in styles.replace(" ", "")


def test_nothing_measured_still_draws() -> None:
    ET.fromstring(learning_curve_svg([]))
    empty = measured(None, None, None, None)
    assert "without measurements" in learning_curve_svg([(0, empty)])
    ET.fromstring(learning_curve_svg([(k, POINTS[1][1]) for k in range(40)]))


def test_arms_whose_runs_are_all_alike_are_drawn() -> None:
    rate = 14 / 30
    mean = (rate + rate + rate) / 3  # rounded to below each of them
    assert mean < rate
    mark = Mark(mean, rate, rate)
    arms = [("a", {"accuracy": mark, "completeness": mark, "soundness": mark})]
    assert arms_svg(arms).startswith("<svg")


def test_importing_the_evaluation_does_not_import_matplotlib() -> None:
    code = (
        "import sys, nip_core.report.report, nip_core.evaluation.baseline_verifiers; "
        "sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_without_matplotlib_a_line_stands_in_its_place_and_names_the_command(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for svg in (learning_curve_svg(POINTS), arms_svg([])):
        root = ET.fromstring(svg)
        [line] = ["".join(node.itertext()) for node in root.iter(f"{SVG}text")]
        assert line.startswith("Not drawn: matplotlib is not installed. nip doctor")
        assert line in root.attrib["aria-label"] and "currentColor" in svg
