"""The default model under kill -9, two starts at once, and a full disk; with the real conversion."""

import os
import subprocess
import sys
import time

import pytest

from helpers.models import DEFAULT

PREPARE = [sys.executable, "-m", "helpers.models"]


def start(cache, **more):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(PREPARE, env=os.environ | {"WORKBOOK_CACHE": str(cache)} | more, **pipes)


def test_a_killed_conversion_looks_unfinished_and_two_that_follow_convert_once(tmp_path):
    killed = start(tmp_path)
    while not list(tmp_path.glob("converting-*")):
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    assert not (tmp_path / DEFAULT).exists()
    two = [start(tmp_path), start(tmp_path)]
    said = [process.communicate(timeout=300)[0] for process in two]
    assert [process.returncode for process in two] == [0, 0], said
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [DEFAULT, "model.lock"]
    weights = tmp_path / DEFAULT / "model.safetensors"
    assert weights.stat().st_size > 250_000_000


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_disk_that_fills_up_leaves_nothing_and_says_so(tmp_path):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", str(tmp_path)], check=True)
    try:
        early = start(tmp_path)
        said = early.communicate()[0]
        assert early.returncode == 1 and "are free. Free some space, or set WORKBOOK_CACHE" in said.splitlines()[-1]
        program = "from helpers import models; models.NEEDED = 0; models.default_model()"
        full = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"WORKBOOK_CACHE": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert full.returncode == 1 and "Free some space" in full.stderr.splitlines()[-1]
        assert [entry.name for entry in tmp_path.iterdir()] == ["model.lock"]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
