"""Folders with shared helpers, and how the tests are spread over two processes (`make test`)."""

import os
import signal
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
for folder in ("unit", "notebooks", "engine"):
    sys.path.insert(0, str(TESTS / folder))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background, as by nohup or a CI
    signal.signal(signal.SIGINT, signal.default_int_handler)  # programs that tests start have the default then

if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    # One core for each: the threads of two engines on the same cores wait for each other most of the time.
    os.environ["OMP_NUM_THREADS"] = "1"
    # A table of engines and a start lock for each, as on a machine of its own; the model is shared.
    from helpers import models

    model = models.default_model()
    cache = models.cache_folder() / f"test-{worker}"
    cache.mkdir(exist_ok=True)
    if not (cache / model.name).exists():
        (cache / model.name).symlink_to(model)
    os.environ["WORKBOOK_CACHE"] = str(cache)


ORDER = ["notebooks", "engine", "chaos", "browser", "unit"]  # the long ones first, so that both processes end together


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items):
    """A file's tests stay together, since they share an engine; a test marked `apart` is a group of its own."""
    for item in items:
        apart = item.get_closest_marker("apart")
        item.add_marker(pytest.mark.xdist_group(item.name if apart else item.path.name))
    items.sort(key=lambda item: ORDER.index(kind) if (kind := item.path.relative_to(TESTS).parts[0]) in ORDER else 0)
