"""What must hold for a notebook's file before its cells are run; nbval alone does not see these."""

import ast
import re

LEDGER_TAG = "claim:"


def problems(notebook) -> list[str]:
    """Everything that is wrong with one notebook, a sentence each."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    found = []
    if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
        found.append("not saved from one run, top to bottom: nbval skips a cell that has no execution count")
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        found.append("saved under a kernel that other machines do not have: python3 is the name")
    if "widgets" in notebook.metadata:
        found.append("widget state in its metadata")
    if not code or "release_llm()" not in code[-1].source:
        found.append("its last code cell does not release the engine")
    for number, cell in enumerate(code, 1):
        found += [f"code cell {number}: {problem}" for problem in _cell_problems(cell)]
    return found


def _cell_problems(cell) -> list[str]:
    found = []
    tagged = {tag.removeprefix(LEDGER_TAG) for tag in cell.metadata.get("tags", []) if tag.startswith(LEDGER_TAG)}
    proved = proved_claims(cell.source)
    if tagged != proved:
        found.append(f"tagged {sorted(tagged)} and proves {sorted(proved)}")
    if any(output.output_type == "error" for output in cell.outputs):
        found.append("an error is saved as its output")
    if re.search(r"/(home|root|work|Users)/", str(cell.outputs)):
        found.append("a path of somebody's machine in its output")
    if re.search(r"\bif\b.*(cuda|gpu)", cell.source, re.IGNORECASE):
        found.append("it asks what device it runs on; sizes come from helpers")
    return found


def proved_claims(source: str) -> set[str]:
    """The ids that a cell gives to `prove`."""
    return {call.args[0].value for call in prove_calls(source)}


def prove_calls(source: str) -> list[ast.Call]:
    """The calls of `prove` in a cell."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [call for call in calls if getattr(call.func, "id", None) == "prove"]
