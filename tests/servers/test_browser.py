"""The report and the page of ``tickscope ui`` in a real browser: Debian's Chromium, driven by Playwright, with axe."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.found import HOSTILE, hostile_store
from tests.replayed import filled

_FLAGS = ("no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking", "disable-sync")
_VERB = (sys.executable, "-c", "from agent.cli.main import main; main()")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=[f"--{flag}" for flag in _FLAGS])
        yield made
        made.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("browser") / "store"
    filled(path, "0020-0")
    return path


@pytest.fixture(scope="module")
def report(store: Path) -> str:
    path = store.parent / "incident.html"
    subprocess.run([*_VERB, "report", "last", "-o", str(path), "--store", str(store)], check=True)
    return f"file://{path}"


@pytest.fixture
def url(store: Path) -> Iterator[str]:
    verb = [*_VERB, "ui", "--listen", "127.0.0.1:0", "--store", str(store)]
    with subprocess.Popen(verb, stdout=subprocess.PIPE, text=True) as ui:
        assert ui.stdout is not None
        yield ui.stdout.readline().strip()
        ui.terminate()


def opened(browser: Browser, where: str, wide: int = 1200, scheme: str = "light") -> tuple[Page, list[str]]:
    """The page, and what went wrong: messages of the console, errors, requests to elsewhere."""
    context = browser.new_context(viewport={"width": wide, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page, wrong = context.new_page(), list[str]()
    page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request", lambda request: None if request.url.startswith((where[:16], "data:")) else wrong.append(request.url)
    )
    page.goto(where)
    page.wait_for_selector(".panel canvas")
    return page, wrong


def serious(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [f"{one['id']}: {one['nodes'][0]['html']}" for one in found if one["impact"] in ("serious", "critical")]


@pytest.mark.parametrize(("wide", "scheme"), [(1200, "light"), (1200, "dark"), (390, "light")])
def test_the_report(browser: Browser, report: str, wide: int, scheme: str) -> None:
    page, wrong = opened(browser, report, wide, scheme)
    assert "jumped back by 5.69 s" in page.inner_text("article.chosen h2")
    assert page.locator(".panel").count() >= 10
    assert serious(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it must not scroll sideways"
    inked = page.evaluate(  # pixels of a curve that are not background
        """() => { const c = [...document.querySelectorAll(".panel canvas")].pop();
        const image = c.getContext("2d").getImageData(0, 0, c.width, c.height);
        return image.data.filter((v, i) => i % 4 === 3 && v).length }"""
    )
    assert inked > 500
    assert wrong == []


def test_the_pointer_and_the_keyboard(browser: Browser, report: str) -> None:
    page, wrong = opened(browser, report)
    plot = page.locator(".panel .u-over").nth(2)
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    assert page.inner_text(".cursor").count(":") == 2  # a time of the day
    assert any(text.strip() for text in page.locator(".panel .legend b").all_inner_texts())
    whole = page.evaluate("document.querySelectorAll('canvas')[2].toDataURL()")
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 20)
    page.mouse.up()
    page.mouse.move(0, 0)
    zoomed = page.evaluate("document.querySelectorAll('canvas')[2].toDataURL()")
    assert zoomed != whole
    page.get_by_role("button", name="Show the whole time").focus()
    page.keyboard.press("Enter")
    page.wait_for_timeout(100)
    assert page.evaluate("document.querySelectorAll('canvas')[2].toDataURL()") != zoomed
    page.get_by_role("button", name="boot", exact=True).focus()
    page.keyboard.press("Space")
    assert page.inner_text("header").count("boot+") == 2
    entry = page.locator("article.chosen li button").first
    entry.focus()
    page.keyboard.press("Enter")
    assert page.locator(".marked").count() == 1
    assert wrong == []


def test_the_live_page(browser: Browser, url: str) -> None:
    page, wrong = opened(browser, url)
    assert page.locator("article").count() == 2
    assert serious(page) == []
    page.fill("input[type=search]", "lab:api-redis-far")
    page.keyboard.press("Enter")
    expect(page.locator(".panel h3", has_text="Queue lag")).to_have_count(0)
    titles = page.locator(".panel h3").all_inner_texts()
    assert "Decisions: lab:api-redis-far" in titles and "Decisions: lab:api-redis" not in titles
    page.fill("input[type=search]", "")
    page.keyboard.press("Enter")
    expect(page.locator("article")).to_have_count(2)
    page.locator(".panel").last.scroll_into_view_if_needed()
    with page.expect_response(lambda answer: "/panels?" in answer.url) as answered:
        page.get_by_role("button", name="Zoom in").click()
    assert answered.value.ok
    page.locator("article button.choose").first.click()
    page.wait_for_selector("article.chosen")
    page.locator("article.chosen .panel").first.scroll_into_view_if_needed()
    drawn = page.locator("article.chosen canvas").first.evaluate("c => c.toDataURL()")
    with page.expect_response(lambda answer: "/panels?" in answer.url) as answered:
        page.locator("article.chosen li button").first.click()  # a piece of evidence: a zoom to its time
    assert answered.value.json()["evidence"]
    page.wait_for_function("d => document.querySelector('article.chosen canvas').toDataURL() !== d", arg=drawn)
    page.wait_for_timeout(200)
    page.locator("article.chosen li button").last.click()  # its panel was replaced by that of finer points
    assert page.locator(".marked").count() == 1
    assert wrong == []


def test_the_timeline_shows_the_cause_before_the_symptom(browser: Browser, tmp_path: Path) -> None:
    filled(tmp_path / "store", "6002-3")
    verb = [*_VERB, "report", "last", "-o", str(tmp_path / "x.html"), "--store", str(tmp_path / "store")]
    subprocess.run(verb, check=True)
    page, wrong = opened(browser, f"file://{tmp_path}/x.html", 390)
    lanes = page.locator("article.chosen .lane")
    assert (
        lanes.nth(0).inner_text().startswith("cause") and "process stopped, redis-server" in lanes.nth(0).inner_text()
    )
    assert lanes.nth(1).inner_text().startswith("symptom")
    cause, symptom = (page.locator(f".chosen .lane i.{part}").bounding_box() for part in ("cause", "symptom"))
    assert cause is not None and symptom is not None
    assert cause["x"] < symptom["x"] and cause["width"] > 250 and symptom["width"] > 250
    assert serious(page) == []
    assert wrong == []


def test_names_of_programs_are_never_run(browser: Browser, tmp_path: Path) -> None:
    """Neither in a report nor on the live page. A dialog, a message of the console or a request would be reported."""
    store = hostile_store(tmp_path / "store", HOSTILE.values())
    report, verb = tmp_path / "x.html", [*_VERB, "ui", "--listen", "127.0.0.1:0", "--store", str(store)]
    subprocess.run([*_VERB, "report", "--since", "boot+0", "-o", str(report), "--store", str(store)], check=True)
    with subprocess.Popen(verb, stdout=subprocess.PIPE, text=True) as ui:
        assert ui.stdout is not None
        try:
            for where in (f"file://{report}", ui.stdout.readline().strip()):
                page, wrong = opened(browser, where)
                page.on("dialog", lambda dialog, wrong=wrong: wrong.append(dialog.message))  # type: ignore[misc]
                page.wait_for_selector("article")
                assert page.locator("img").count() == 0
                assert page.locator("a[href^=javascript]").count() == 0
                text = page.locator("body").inner_text()
                assert "<img src=x onerror=alert(1)>" in text and "\u202e" not in text and "\x1b" not in text
                assert wrong == []
        finally:
            ui.terminate()
