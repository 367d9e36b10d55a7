"""Opens a URL of ``tickscope ui`` in Chromium, chooses the finding of a stopped process, and takes its picture:
``python -m tests.package.page_picture URL FILE``. A program of its own, so that it can run in another network
namespace.
"""

from __future__ import annotations

import sys

from playwright.sync_api import expect, sync_playwright


def main(url: str, path: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_context(viewport={"width": 1000, "height": 900}, color_scheme="light").new_page()
        wrong = list[str]()
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(url)
        page.locator("article button.choose", has_text="was stopped").last.click()
        expect(page.locator("article.chosen .lane", has_text="cause").first).to_contain_text(
            "process stopped, redis-server"
        )
        expect(page.locator("article.chosen .lane i.symptom")).to_be_visible()
        page.wait_for_timeout(300)
        page.screenshot(path=path)
        browser.close()
    assert wrong == [], wrong


if __name__ == "__main__":
    main(*sys.argv[1:])
