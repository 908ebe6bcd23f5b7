"""The answers that notebooks show are the same in each data type, since no other token comes near along them."""

from pathlib import Path

import nbformat
import pytest

from helpers import outputs

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def cells(path: Path) -> list:
    """The code cells of a notebook up to the last one tagged `answer`; none where there is no such tag."""
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    tagged = [number for number, cell in enumerate(code) if "answer" in cell.metadata.get("tags", [])]
    return code[: tagged[-1] + 1] if tagged else []


@pytest.fixture(scope="module")
def llm():
    from helpers import get_llm, release_llm

    yield get_llm()
    release_llm()


@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if cells(path)], ids=lambda path: path.stem)
def test_no_shown_answer_hangs_on_a_near_tie(path, llm, monkeypatch):
    asked, shown = llm.chat, []

    def chat(messages, params, **more):
        scored = params.clone()
        scored.logprobs = 2
        shown.extend(outputs.margins(asked(messages, scored, **more)))
        return asked(messages, params, **more)

    monkeypatch.setattr(llm, "chat", chat)
    names: dict = {}
    for cell in cells(path):
        exec(cell.source, names)
    assert shown and min(min(margins) for margins in shown) >= outputs.NEAR_TIE, shown
