"""The notebooks' files are as a reader should find them, and the guards notice when they are not."""

from pathlib import Path

import nbformat
import pytest
from guards import problems, proved_claims

from helpers.teaching.claims import ledger

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def read(path=NOTEBOOKS[0]):
    return nbformat.read(path, as_version=4)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_whole(path):
    assert problems(read(path)) == []


def test_every_statement_of_the_ledger_has_a_cell_that_proves_it():
    proved = [claim for path in NOTEBOOKS for cell in code(read(path)) for claim in proved_claims(cell.source)]
    assert sorted(proved) == sorted(ledger())


def forget_count(notebook):
    code(notebook)[1].execution_count = None


def personal_kernel(notebook):  # G8
    notebook.metadata.kernelspec.name = "my-env"


def widget_state(notebook):
    notebook.metadata.widgets = {}


def keep_the_engine(notebook):
    code(notebook)[-1].source = "1 + 1"


def lose_a_tag(notebook):
    next(cell for cell in code(notebook) if "claim:" in str(cell.metadata)).metadata.tags = []


def save_an_error(notebook):
    code(notebook)[0].outputs = [nbformat.v4.new_output("error", ename="E", evalue="", traceback=[])]


def show_a_home(notebook):
    code(notebook)[0].outputs = [nbformat.v4.new_output("stream", text="in /home/ann/models")]


def ask_for_the_device(notebook):
    code(notebook)[0].source = "n = 8\nif torch.cuda.is_available(): n = 64"


@pytest.mark.parametrize(
    "spoil",
    [
        forget_count,
        personal_kernel,
        widget_state,
        keep_the_engine,
        lose_a_tag,
        save_an_error,
        show_a_home,
        ask_for_the_device,
    ],
)
def test_a_guard_notices(spoil):
    notebook = read()
    spoil(notebook)
    assert len(problems(notebook)) == 1
