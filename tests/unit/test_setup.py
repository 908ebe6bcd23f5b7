"""tools/setup.py: what it refuses, and that a set-up that was broken off is not taken for a whole one."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def setup(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("setup_tool", ROOT / "tools/setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "VENV", tmp_path)
    monkeypatch.setattr(module, "DONE", tmp_path / "done")
    monkeypatch.setattr(module, "INSTALLING", tmp_path / "installing")
    monkeypatch.setattr(module, "PYTHON", Path(sys.executable))
    return module


def sentence(function, *arguments):
    with pytest.raises(SystemExit) as stop:
        function(*arguments)
    return str(stop.value)


def test_a_python_that_is_too_old_is_refused_with_the_versions_that_serve(setup, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    monkeypatch.setattr(setup.shutil, "which", lambda name: None)
    assert "python3 is 3.10, and the workbook needs 3.11 to 3.14" in sentence(setup.find_python)


def test_a_newer_python_on_the_path_is_taken(setup, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    monkeypatch.setattr(setup.shutil, "which", lambda name: sys.executable if name == "python3.12" else None)
    assert setup.find_python() == sys.executable


def test_a_gpu_asked_for_where_there_is_none(setup, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert "nvidia-smi sees no GPU" in sentence(setup.choose_device, "gpu")
    assert setup.choose_device("") == "cpu"


def test_a_device_that_does_not_exist(setup):
    assert "DEVICE=tpu is neither cpu nor gpu" in sentence(setup.choose_device, "tpu")


def test_a_finished_set_up_runs_nothing(setup, monkeypatch):
    setup.DONE.write_text(setup.fingerprint(sys.executable, "cpu"))
    monkeypatch.setattr(setup, "step", lambda *a: pytest.fail("it ran a step"))
    setup.main("cpu")


def commands(setup, monkeypatch, fail=False):
    """The commands that an installation runs."""
    seen = []
    monkeypatch.setattr(setup, "run", lambda command: seen.append(command) or (fail and setup.fail("broken off")))
    monkeypatch.setattr(setup, "install_torch", lambda *a: None)
    return seen


def test_an_installation_that_was_broken_off_is_done_anew_in_full(setup, monkeypatch):
    setup.DONE.write_text("what an earlier set-up left")
    seen = commands(setup, monkeypatch, fail=True)
    sentence(setup.install, "cpu")
    assert not setup.DONE.exists() and "--reinstall" not in seen[-1]
    seen = commands(setup, monkeypatch)
    setup.install("cpu")
    assert "--reinstall" in seen[-1] and not setup.INSTALLING.exists()
    setup.install("cpu")
    assert "--reinstall" not in seen[-1]


def test_another_device_is_another_environment(setup):
    setup.DONE.write_text(setup.fingerprint(sys.executable, "cpu"))
    assert setup.kind() == setup.kind(setup.fingerprint(sys.executable, "cpu"))
    assert setup.kind() != setup.kind(setup.fingerprint(sys.executable, "gpu"))


def test_a_failing_command_shows_its_output_and_how_to_go_on(setup, capsys):
    said = sentence(setup.run, [sys.executable, "-c", "print('no network'); exit(2)"])
    assert "no network" in capsys.readouterr().out and "`make` picks it up" in said


def test_the_tool_itself_runs_under_an_old_python(setup):
    source = (ROOT / "tools/setup.py").read_text()
    compile(source, "setup.py", "exec", dont_inherit=True)
    assert 'f"' not in source and "match " not in source  # the syntax of every Python 3


def test_make_help_lists_the_commands():
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True).stdout
    assert all(f"make {name}" in said for name in ("lab", "test", "test-fast", "notebooks", "bench", "lock", "clean"))
