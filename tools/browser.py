"""The Chromium of the browser tests: `browser.py get` looks for one and else installs it; `browser.py check` says where
there is still none what was not run, in one line.

A browser of the system, or one that Playwright installed, serves; `WORKBOOK_BROWSER` names another.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = (
    "NOT RUN: the tests in tests/browser, for want of a Chromium, which could not be installed here. "
    "Install one (`apt install chromium`) or name it in WORKBOOK_BROWSER, then `make test` again."
)


def find() -> str | None:
    """The path of a browser, or None."""
    own = os.environ.get("WORKBOOK_BROWSER")
    return own or next(filter(None, map(shutil.which, NAMES)), None) or _of_playwright()


def get() -> str | None:
    """The path of a browser, installed if need be: by apt where this user may, else by Playwright."""
    if found := find():
        return found
    if os.geteuid() == 0 and shutil.which("apt-get"):
        print("Installing Chromium for the browser tests (usually 20 s) ...", flush=True)
        _quietly("apt-get", "update", "-qq")
        _quietly("apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium", "fonts-dejavu-core")
    if not find():
        _quietly(sys.executable, "-m", "playwright", "install", "--only-shell", "chromium")
    return find()


def _of_playwright() -> str | None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    shells = Path(path).parents[2].glob("chromium_headless_shell-*/*/*headless*shell")
    return next((str(file) for file in (Path(path), *shells) if file.is_file()), None)


def _quietly(*command: str) -> None:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=600)


if __name__ == "__main__":
    if sys.argv[1:] == ["get"]:
        get()
    elif not find():
        print(MISSING)
