"""Runs the notebooks in place, top to bottom, each in its own kernel: notebooks.py [PART OF A NAME ...]."""

import signal
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from verified import update

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def run(path: Path) -> None:
    """Executes one notebook and saves it, its metadata reduced to what every machine has in common."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    ).execute()
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({"tags": cell.metadata["tags"]} if cell.metadata.get("tags") else {})
        if cell.cell_type == "code":
            cell.outputs = merged(cell.outputs)
            for output in cell.outputs:  # without its kernel a widget is an error message; its text stays
                output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
    nbformat.write(notebook, path)


def merged(outputs: list) -> list:
    """Neighbouring pieces of the same stream as one output: how they were cut depends on the machine's speed."""
    whole = []
    for output in outputs:
        if whole and output.output_type == "stream" == whole[-1].output_type and output.name == whole[-1].name:
            whole[-1].text += output.text
        else:
            whole.append(output)
    return whole


def main(parts: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # kernels inherit it; in the background it is ignored
    chosen = [p for p in sorted(FOLDER.glob("*.ipynb")) if not parts or any(part in p.name for part in parts)]
    if not chosen:
        sys.exit(f"No notebook has {' or '.join(parts)} in its name.")
    failed = []
    for number, path in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {path.name} ... ", end="", flush=True)
        start = time.perf_counter()
        try:
            run(path)
            update(path)
            print(f"{time.perf_counter() - start:.0f} s", flush=True)
        except CellExecutionError as error:
            failed.append(path.name)
            print(f"failed, left as it was\n{error}", flush=True)
    if failed:
        sys.exit(f"{len(failed)} of {len(chosen)} failed: {', '.join(failed)}")


if __name__ == "__main__":
    main(sys.argv[1:])
