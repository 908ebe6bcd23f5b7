"""JupyterLab as `make lab` starts it, on a copy of the notebooks, in headless Chromium."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from browser import find  # noqa: E402

QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def start_lab(folder: Path, theme: str) -> tuple[subprocess.Popen, str]:
    """Starts tools/lab.py on a copy of the notebooks; the process, and the address that it printed."""
    for name in ("tools", "notebooks", "docs"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(Path(sys.prefix))
    settings = folder / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "themes.jupyterlab-settings").write_text(json.dumps({"theme": theme}))
    environment = os.environ | {"JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"), "DISPLAY": ""}
    with open(folder / "log", "w") as log:
        command = [sys.executable, "tools/lab.py"]
        lab = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
    said = next((line for line in lab.stdout if line.startswith("JupyterLab: ")), None)
    assert said, (folder / "log").read_text()
    return lab, said.split()[-1]


@pytest.fixture(params=["JupyterLab Light", "JupyterLab Dark"], ids=["light", "dark"], scope="session")
def theme(request):
    return request.param


@pytest.fixture(scope="session")
def lab(theme, tmp_path_factory):
    """The address of a running JupyterLab in one theme."""
    process, address = start_lab(tmp_path_factory.mktemp("lab"), theme)
    yield address
    process.terminate()
    process.wait(timeout=30)


@pytest.fixture(scope="session")
def browser():
    path = find()
    if not path and not os.environ.get("CI"):
        pytest.skip("no Chromium on this machine")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=QUIET)
        yield chromium
        chromium.close()


@pytest.fixture
def notebook(browser, lab):
    """Opens a notebook by name and returns its page."""
    pages = []

    def open_notebook(name: str):
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        pages.append(page)
        page.goto(lab.replace("00_start_here.ipynb", name) + "&reset")
        page.wait_for_selector(".jp-Notebook .jp-MarkdownOutput h1", timeout=90_000)
        page.wait_for_selector(".jp-mod-idle, [data-status=idle]", timeout=90_000)
        return page

    yield open_notebook
    for page in pages:
        page.close()
