"""Removes the nuisances around vLLM's offline engine in a notebook, and never hides a vLLM call.

Import it before vLLM: it sets the variables that vLLM reads once, at import. The rooms:

    problems     errors meant for the reader: one sentence each
    machine      what this machine has, and the variables that vLLM reads at its import
    models       which checkpoint, and the default one made ready (`convert` turns its file into one)
    memory       what an engine takes, and that it comes back
    engine/      the shared engine and its life; `inside` alone touches vLLM's private parts
    prompts, sampling, outputs, timeline, roofline, picture     the subjects of notebooks 02 to 06
    jobs/        the batch job that survives
    serving/     the server beside a notebook, its client, the comparison
    teaching/    statements and their proofs, decisions
    widgets/     thin views over plain functions
"""

from helpers.machine import about, set_environment, workload

set_environment()

from helpers.engine.failures import EngineStartFailed  # noqa: E402
from helpers.engine.guard import EngineBusy  # noqa: E402
from helpers.engine.quiet import startup_log  # noqa: E402
from helpers.engine.registry import engines  # noqa: E402
from helpers.engine.shared import EngineConflict, construction, get_llm, my_turn, release_llm  # noqa: E402

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
