"""The page in a real browser: no error, every section and chart drawn, sorting, zooming, hovering, both themes."""

from __future__ import annotations

import csv
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from byov.report.page import report

from .conftest import Pair
from .reading import SECTIONS

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: it comes with the dev extra"
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on the path: install Debian's chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield found
        found.close()


class Opened:
    """A page opened from the disk, and everything that it complained of or asked of the network."""

    def __init__(
        self, browser: Any, path: Path, width: int, height: int, scheme: str = "light", charts: int = 5
    ) -> None:
        viewport = {"width": width, "height": height}
        self.context = browser.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.resolve().as_uri())
        self.page.wait_for_function(f"document.querySelectorAll('.chart svg').length >= {charts}")

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.context.close()
        if kind is None:
            assert self.complaints == []
            assert [url for url in self.asked if not url.startswith(("file:", "data:"))] == []


def luminance(colour: str) -> float:
    """Relative luminance of "rgb(r, g, b)", as WCAG defines it."""
    parts = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_page_opens_and_answers_without_scrolling(browser: Any, pair: Pair) -> None:
    out, tree = pair
    for width, height, scheme in ((1280, 800, "light"), (1280, 800, "dark"), (390, 844, "light")):
        with Opened(browser, out, width, height, scheme) as opened:
            page = opened.page
            assert [each.get_attribute("id") for each in page.locator("section").all()] == SECTIONS
            for place in ("#question", ".verdict", "#answer .words p >> nth=1"):
                box = page.locator(place).first.bounding_box()
                assert box["y"] >= 0
                assert box["y"] + box["height"] <= height, place
                assert box["x"] + box["width"] <= width, place
            assert page.locator("#question").inner_text() == tree["verdict"]["question"]
            assert page.evaluate("document.documentElement.scrollWidth") <= width  # nothing sticks out of a phone
            assert page.locator("[data-figure]").count() == page.locator(".chart svg").count()
            ink, paper = (
                page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("color", "backgroundColor")
            )
            light, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) > 7  # WCAG's AAA
            assert (luminance(paper) < 0.2) == (scheme == "dark")


def test_tables_sort_up_and_down(browser: Any, pair: Pair) -> None:
    with Opened(browser, pair[0], 1280, 800) as opened:
        table = opened.page.locator("#heat")
        column = (
            "[...document.querySelectorAll('#heat tbody tr:not([data-fixed])')].map(r => Number(r.cells[1].dataset.v))"
        )
        before = opened.page.evaluate(column)
        head = table.locator("thead th").nth(1)
        head.locator("button").click()
        up = opened.page.evaluate(column)
        assert up == sorted(before)
        assert head.get_attribute("aria-sort") == "ascending"
        head.locator("button").press("Enter")
        assert opened.page.evaluate(column) == sorted(before, reverse=True)
        assert head.get_attribute("aria-sort") == "descending"
        assert table.locator("tbody tr").last.inner_text().startswith("all shifts")  # a total stays below
        table.locator("thead th").nth(0).locator("button").click()
        names = table.locator("tbody tr:not([data-fixed]) th").all_inner_texts()
        assert names == sorted(names)


def test_the_heat_map_shows_what_is_chosen(browser: Any, pair: Pair) -> None:
    out, tree = pair
    with Opened(browser, out, 1280, 800) as opened:
        page = opened.page
        cell = page.locator('#heat td[data-series="1/under_draws"][data-shift="rotation"]')
        page.select_option("#heat-metric", "auroc_mutual_information")
        page.select_option("#heat-severity", "5")
        wanted = tree["ood"]["values"]["1/under_draws"]["auroc_mutual_information"]["rotation"]["5"]
        assert cell.inner_text() == f"{wanted:.3f}"
        assert page.locator('#heat td[data-series="0/at_mean"][data-shift="rotation"]').inner_text() == "–"
        cell.hover()
        assert "severity 5" in page.locator(".tip").inner_text()


def test_charts_tell_values_zoom_and_listen_to_keys(browser: Any, pair: Pair) -> None:
    out, tree = pair
    with Opened(browser, out, 1280, 900) as opened:
        page = opened.page
        page.locator("#pruning summary").first.click()
        chart = page.locator('#pruning [data-figure="pruning"]')
        chart.scroll_into_view_if_needed()
        drawn = chart.locator("svg")
        curve = tree["pruning"][0]["value"][0]
        assert chart.locator("circle.dot").count() == 3 * len(curve["sparsity"])
        dot = chart.locator("circle.dot").first.bounding_box()
        page.mouse.move(dot["x"] + dot["width"] / 2, dot["y"] + dot["height"] / 2)
        assert "0 % of the weights are 0" in page.locator(".tip").inner_text()
        drawn.focus()
        drawn.press("Escape")
        drawn.press("ArrowRight")
        drawn.press("ArrowRight")
        told = page.locator(".tip").inner_text()
        assert "20 % of the weights are 0" in told
        assert f"{100 * curve['top1'][1]:.2f} %" in told
        box = drawn.bounding_box()
        page.mouse.move(box["x"] + 200, box["y"] + 40)
        page.mouse.down()
        page.mouse.move(box["x"] + 500, box["y"] + 160, steps=4)
        page.mouse.up()
        assert chart.get_by_text("Reset zoom").is_visible()
        chart.get_by_text("Reset zoom").click()
        assert not chart.get_by_text("Reset zoom").is_visible()
        page.locator("#pruning button[data-measure=ece]").click()
        assert "ECE" in chart.locator(".chart-title").inner_text()
        chart.locator(".enlarge").click()
        assert page.locator("dialog .chart svg").bounding_box()["width"] > 900
        page.keyboard.press("Escape")
        assert not page.locator("dialog").is_visible()
        page.locator(".tile").first.click()
        assert "confidence" in page.locator("dialog").inner_text()
        page.locator("dialog .close").click()


def test_what_is_saved_opens(browser: Any, pair: Pair, tmp_path: Path) -> None:
    """Of the calibration diagram a picture of either kind and its numbers; of the heat map its cells."""
    out, tree = pair
    with Opened(browser, out, 1280, 900) as opened:
        page, saved = opened.page, {}
        chart = page.locator('#calibration [data-figure="calibration"]').first
        buttons = [(kind, chart.locator(".export button", has_text=kind)) for kind in ("SVG", "PNG", "CSV")]
        for kind, button in [*buttons, ("table", page.locator("#ood .table-file"))]:
            with page.expect_download() as caught:
                button.click()
            saved[kind] = tmp_path / caught.value.suggested_filename
            caught.value.save_as(saved[kind])
        texts = [node.text for node in ElementTree.parse(saved["SVG"]).iter("{http://www.w3.org/2000/svg}text")]
        assert {"Clean images", "confidence, %", "BYOV, draws"} <= set(texts)
        with Image.open(saved["PNG"]) as picture:
            assert picture.width == 2 * page.evaluate("document.querySelector('#calibration svg').clientWidth")
            assert len(picture.getcolors(1 << 20)) > 50
        rows = list(csv.DictReader(saved["CSV"].open(encoding="utf-8")))
        points = [point for each in tree["calibration"]["clean"].values() for point in each["points"]]
        assert [float(row["accuracy, %"]) for row in rows] == [point["accuracy"] for point in points]
        cells = list(csv.reader(saved["table"].open(encoding="utf-8")))
        assert [row[0] for row in cells[1:]] == [name.replace("_", " ") for name in tree["ood"]["shifts"]]


def test_it_prints_on_three_pages_and_abbreviations_tell_themselves(browser: Any, pair: Pair) -> None:
    with Opened(browser, pair[0], 1280, 900) as opened:
        page = opened.page
        assert len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4"))) <= 3
        page.locator("#answer abbr", has_text="ECE").first.hover()
        assert "expected calibration error" in page.locator(".tip").inner_text()
        page.locator("#numbers th button", has_text="NLL").first.focus()
        assert "negative log-likelihood" in page.locator(".tip").inner_text()
        page.locator('.top nav a[href="#details"]').click()
        page.locator("#config summary").first.click()
        assert page.locator("#config details[open] tr", has_text="posterior.family").is_visible()
        assert not page.locator("#config tr", has_text="model.encoder").is_visible()  # the same of both


def test_the_theme_can_be_turned(browser: Any, pair: Pair) -> None:
    with Opened(browser, pair[0], 1280, 800) as opened:
        paper = "getComputedStyle(document.body).backgroundColor"
        before = opened.page.evaluate(paper)
        opened.page.locator("#theme").click()
        after = opened.page.evaluate(paper)
        assert luminance(after) < 0.1 < luminance(before)
        opened.page.locator("#theme").click()
        assert opened.page.evaluate(paper) == before


def test_a_page_with_little_in_it_has_no_error_either(browser: Any, runs: dict[str, Path], tmp_path: Path) -> None:
    report([runs["byov2"]], tmp_path / "bare.html", compute=False, cache=tmp_path / "cache")
    with Opened(browser, tmp_path / "bare.html", 1280, 800, charts=1) as opened:
        assert opened.page.locator(".absent").count() > 6
