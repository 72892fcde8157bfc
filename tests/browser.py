"""Debian's Chromium without a window, for tests of pages: it opens files and talks to nobody."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
# As root, in a container and without a display; nothing of its own goes to the network.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Opened(NamedTuple):
    """A page in the browser, and what has happened on it: messages, and addresses asked for."""

    page: object
    messages: list[str]
    requests: list[str]


def chromium() -> str:
    """The path of the browser; skips the test where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("needs a browser: apt-get install -y chromium")
    return found


@contextlib.contextmanager
def opened(file: Path, width: int, height: int = 900, touch: bool = False) -> Iterator[Opened]:
    """Opens a file in a new browser, in a window of a size."""
    path = chromium()
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs the browser's driver: pip install playwright"
    )
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            size = {"width": width, "height": height}
            page = browser.new_context(viewport=size, has_touch=touch).new_page()
            messages: list[str] = []
            requests: list[str] = []
            page.on("console", lambda message: messages.append(f"{message.type}: {message.text}"))
            page.on("pageerror", lambda error: messages.append(f"error: {error}"))
            page.on("request", lambda request: requests.append(request.url))
            page.goto(file.resolve().as_uri())
            yield Opened(page, messages, requests)
        finally:
            browser.close()
