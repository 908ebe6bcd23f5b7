"""Removes the nuisances around vLLM's offline engine in a notebook, and never hides a vLLM call.

Import it before vLLM: it sets the variables that vLLM reads once, at import.
"""

from helpers.devices import about, set_environment, workload

set_environment()

from helpers.engine import EngineConflict, construction, get_llm, my_turn, release_llm  # noqa: E402
from helpers.failures import EngineStartFailed  # noqa: E402
from helpers.guard import EngineBusy  # noqa: E402
from helpers.quiet import startup_log  # noqa: E402
from helpers.registry import engines  # noqa: E402

__all__ = [
    "EngineBusy",
    "EngineConflict",
    "EngineStartFailed",
    "about",
    "construction",
    "engines",
    "get_llm",
    "my_turn",
    "release_llm",
    "startup_log",
    "workload",
]
