"""What the project says about itself in several places is the same in all of them."""

import os
import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def lock(device):
    lines = (ROOT / f"requirements/{device}.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_environment_yml_lists_what_pyproject_lists_for_a_gpu():
    [pip] = [
        d["pip"] for d in yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"] if isinstance(d, dict)
    ]
    assert sorted(pip) == sorted(PROJECT["dependencies"] + EXTRAS["gpu"] + EXTRAS["test"])


def test_the_locks_pin_what_pyproject_asks_for():
    for device in ("cpu", "gpu"):
        names = {re.split("[=<> ;]", line)[0] for line in lock(device)}
        wanted = PROJECT["dependencies"] + EXTRAS[device] + EXTRAS["model"] + EXTRAS["test"]
        assert names >= {re.split("[=<>]", entry)[0] for entry in wanted}
        assert [pin for pin in EXTRAS[device] + EXTRAS["model"] if "==" in pin and pin not in lock(device)] == []


def test_the_cpu_lock_has_nothing_that_breaks_or_weighs_down_the_cpu_build():
    unwanted = {"torchvision", "torchaudio", "torchcodec", "llama-cpp-python", "llm", "ray", "triton"}
    assert not unwanted & {line.split("==")[0] for line in lock("cpu")}
    assert not [line for line in lock("cpu") if line.startswith("nvidia-") and not line.startswith("nvidia-ml-py")]


def test_the_readme_names_every_notebook():
    readme = (ROOT / "README.md").read_text()
    assert [p.name for p in (ROOT / "notebooks").glob("*.ipynb") if f"notebooks/{p.name}" not in readme] == []


def test_the_page_of_rooms_is_what_the_modules_say(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import rooms

    assert rooms.PAGE.read_text() == rooms.page(), "`make rooms` writes it anew"


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="one process runs everything")
def test_a_file_s_tests_stay_in_one_process(request):
    assert request.node.nodeid.endswith(f"@{request.path.name}"), (
        "each process would start the file's engine and server"
    )
