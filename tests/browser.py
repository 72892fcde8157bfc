"""Debian's Chromium without a window, for tests of pages: it opens files and talks to nobody."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

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

PATIENCE = 180_000  # milliseconds: a busy machine takes its time over some megabytes of script


class Opened(NamedTuple):
    """A page in the browser, and what has happened on it: messages, and addresses asked for."""

    page: object
    messages: list[str]
    requests: list[str]


def chromium() -> str:
    """The path of the browser; where there is none, the test ends."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return found or missing("a browser: apt-get install -y chromium")


def missing(what: str) -> NoReturn:
    """Skips the test for want of something; fails it in CI, which has installed it all."""
    end = pytest.fail if os.environ.get("CI") else pytest.skip
    end(f"needs {what}")


@contextlib.contextmanager
def opened(file: Path, width: int, height: int = 900, touch: bool = False) -> Iterator[Opened]:
    """Opens a file in a new browser, in a window of a size."""
    path = chromium()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("the browser's driver: pip install playwright")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            size = {"width": width, "height": height}
            page = browser.new_context(viewport=size, has_touch=touch).new_page()
            page.set_default_timeout(PATIENCE)
            messages: list[str] = []
            requests: list[str] = []
            page.on("console", lambda message: messages.append(f"{message.type}: {message.text}"))
            page.on("pageerror", lambda error: messages.append(f"error: {error}"))
            page.on("request", lambda request: requests.append(request.url))
            page.goto(file.resolve().as_uri())
            yield Opened(page, messages, requests)
        finally:
            browser.close()
