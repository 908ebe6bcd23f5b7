"""tools/browser.py: a browser that is there is taken, and one that cannot be had is a line at the end."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools/browser.py"


@pytest.fixture
def browser(monkeypatch):
    spec = importlib.util.spec_from_file_location("browser_tool", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.delenv("WORKBOOK_BROWSER", raising=False)
    monkeypatch.setattr(module, "_of_playwright", lambda: None)
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    return module


def test_the_readers_own_browser_comes_first(browser, monkeypatch):
    monkeypatch.setattr(browser.shutil, "which", lambda name: f"/usr/bin/{name}" if name == "google-chrome" else None)
    assert browser.get() == "/usr/bin/google-chrome"
    monkeypatch.setenv("WORKBOOK_BROWSER", "/opt/chrome")
    assert browser.get() == "/opt/chrome"


@pytest.mark.parametrize("root", [True, False])
def test_where_none_is_there_the_system_and_then_playwright_are_asked(browser, monkeypatch, root):
    asked = []
    monkeypatch.setattr(browser, "_quietly", lambda *command: asked.append(" ".join(command)))
    monkeypatch.setattr(browser.os, "geteuid", lambda: 0 if root else 1000)
    monkeypatch.setattr(browser.shutil, "which", lambda name: name if name == "apt-get" else None)
    assert browser.get() is None
    assert any("apt-get install" in command for command in asked) is root and "playwright install" in asked[-1]


def test_the_last_line_says_what_was_not_run():
    code = f"import sys; sys.argv = ['x', 'check']; import runpy, shutil; shutil.which = lambda name: None; {PATCH}"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert said.count("\n") == 1 and said.startswith("NOT RUN: the tests in tests/browser")


PATCH = (
    "import playwright.sync_api as p; from unittest.mock import MagicMock; "
    "p.sync_playwright = MagicMock(); "
    "p.sync_playwright().__enter__().chromium.executable_path = '/no/such/place/chrome/chrome'; "
    f"runpy.run_path({str(TOOL)!r}, run_name='__main__')"
)
