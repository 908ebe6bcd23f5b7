"""nbval runs every notebook on the real engine: green as saved, and red in each proof that is denied."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from guards import prove_calls

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def run_nbval(notebook, folder: Path) -> tuple[set[int], int, str]:
    """Runs a notebook as `pytest notebooks` does: the numbers of its failed code cells, how many passed, the report."""
    (folder / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    nbformat.write(notebook, folder / "book.ipynb")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), "-rA"]
    places = [f"--rootdir={ROOT}", f"--confcutdir={folder}", str(folder / "book.ipynb")]
    report = subprocess.run([*command, *places], capture_output=True, text=True, cwd=ROOT).stdout
    failed, passed = (
        set(re.findall(rf"^{word} .*::Cell (\d+)", report, re.MULTILINE)) for word in ("FAILED", "PASSED")
    )
    return {int(number) for number in failed}, len(passed), report


def with_denials(notebook) -> set[int]:
    """Puts a cell that denies it behind each proof; returns the numbers of these cells among the code cells."""
    cells, denials, number = [], set(), 0
    for cell in notebook.cells:
        cells.append(cell)
        if cell.cell_type != "code":
            continue
        number += 1
        for call in prove_calls(cell.source):
            holds = next(word for word in call.keywords if word.arg == "holds")
            holds.value = ast.UnaryOp(ast.Not(), holds.value)
            cells.append(nbformat.v4.new_code_cell(ast.unparse(call), execution_count=1))
            denials.add(number)
            number += 1
    notebook.cells = cells
    return denials


@pytest.mark.apart
@pytest.mark.parametrize("path", NOTEBOOKS[::-1], ids=lambda path: path.stem)  # the longest first
def test_a_notebook_is_green_and_its_denied_proofs_are_red(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    denials = with_denials(notebook)
    failed, passed, report = run_nbval(notebook, tmp_path)
    cells = sum(cell.cell_type == "code" for cell in notebook.cells)
    assert failed == denials and passed == cells - len(denials), report


SMALL = {
    "right": ("print('a')", "a\n", 1, False),
    "another output is saved": ("print('a')", "b\n", 1, True),
    "it raises": ("raise ValueError", "", 1, True),
    "G1: output trickles for more than nbval's 5 seconds": ("import time\ntime.sleep(6)\nprint('a')", "a\n", 1, False),
    "G2: bars and logs on stderr": ("import sys\nprint('50%', file=sys.stderr)\nprint('a')", "a\n", 1, False),
    "no execution count, and an output": ("print('a')", "a\n", None, True),
    "no execution count, no output: nbval lets it pass, a guard refuses it": ("print('a')", "", None, False),
}


def test_which_cells_nbval_fails(tmp_path):
    cells = [
        nbformat.v4.new_code_cell(
            source, execution_count=count, outputs=[nbformat.v4.new_output("stream", text=saved)] if saved else []
        )
        for source, saved, count, _ in SMALL.values()
    ]
    failed, passed, report = run_nbval(nbformat.v4.new_notebook(cells=cells), tmp_path)
    assert failed == {number for number, (*_, fails) in enumerate(SMALL.values()) if fails}, report
    assert passed == len(SMALL) - len(failed)
