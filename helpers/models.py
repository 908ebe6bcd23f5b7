"""Which model the notebooks run, and the default one made ready."""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock
from platformdirs import user_cache_path

from helpers.problems import Problem

DEFAULT = "SmolLM2-135M-Instruct"
NEEDED = 600 * 2**20  # bytes of disk while converting: the checkpoint (270 MB) and room to spare


class ModelProblem(Problem):
    """The model cannot be used; the message says why and what to do."""


def model() -> str:
    """The model of this workbook: `WORKBOOK_MODEL` (a hub id or a folder), else the embedded default's folder."""
    return os.environ.get("WORKBOOK_MODEL") or str(default_model())


def cache_folder() -> Path:
    """Where the workbook keeps what it makes: `WORKBOOK_CACHE`, else this user's cache folder."""
    return Path(os.environ.get("WORKBOOK_CACHE") or user_cache_path("vllm-workbook"))


def default_model() -> Path:
    """The folder of the embedded default model, converted on first use (25 s; later calls only look).

    The folder appears under its name only when whole, and one process converts while others wait.
    Raises `ModelProblem` when the disk is full or the conversion fails.
    """
    done = cache_folder() / DEFAULT
    if done.exists():
        return done
    try:
        done.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(done.parent / "model.lock"):
            if not done.exists():
                _convert(done)
    except OSError as error:
        raise ModelProblem(f"The default model cannot be written to {done.parent}: {error}. {_ANOTHER_DISK}") from error
    return done


_ANOTHER_DISK = "Free some space, or set WORKBOOK_CACHE to a folder on another disk."


def _convert(done: Path) -> None:
    """Converts beside `done`, then moves the whole folder into place; what a killed run left is removed first."""
    for leftover in done.parent.glob("converting-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    free = shutil.disk_usage(done.parent).free
    if free < NEEDED:
        raise ModelProblem(
            f"The default model needs {NEEDED >> 20} MB in {done.parent}, and {free >> 20} MB are free. {_ANOTHER_DISK}"
        )
    folder = tempfile.mkdtemp(prefix="converting-", dir=done.parent)
    try:
        # A child: torch's and transformers' memory goes with it, and the caller's random generators are not touched.
        child = subprocess.run(
            [sys.executable, "-m", "helpers.convert", folder],
            capture_output=True,
            text=True,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": ""},
        )
        if child.returncode:
            why = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
            full = "No space left" in child.stderr
            way_out = _ANOTHER_DISK if full else "Or set WORKBOOK_MODEL to a hub id or a checkpoint's folder."
            raise ModelProblem(f"The default model could not be made ready in {done.parent}: {why}. {way_out}")
        os.chmod(folder, 0o755)
        os.rename(folder, done)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Checkpoint:
    """A model as vLLM will load it, looked up once."""

    given: str  # what vLLM is given: a folder's path, or a hub id
    folder: Path | None  # None for a hub id whose files are not on this disk yet
    config: dict[str, Any] = field(repr=False)  # config.json

    @property
    def name(self) -> str:
        """A folder's own name, or the whole hub id."""
        return Path(self.given).name if Path(self.given).is_dir() else self.given

    @property
    def files(self) -> list[Path]:
        """The safetensors files; none where they are not on this disk yet."""
        return sorted(self.folder.glob("*.safetensors")) if self.folder else []

    @property
    def weight_bytes(self) -> int | None:
        """Bytes of the weights, or None where they are not on this disk yet."""
        return sum(file.stat().st_size for file in self.files) or None

    @property
    def context(self) -> int | None:
        """The longest sequence that `config.json` names, in tokens; None where it names none."""
        return self._text.get("max_position_embeddings")

    @property
    def dtype(self) -> str:
        """The data type in which the weights are stored, by `config.json`; "None" where it does not say."""
        return str(self.config.get("dtype") or self.config.get("torch_dtype"))

    @property
    def _text(self) -> dict[str, Any]:
        """The language model's part of `config.json`; multimodal models keep it apart."""
        return self.config.get("text_config", self.config)

    def parameters(self) -> int | None:
        """How many numbers the weights are, or None where they are not on this disk yet.

        What the output layer shares with the embedding counts once. The engine's own tensors do not tell: on a CPU
        vLLM repacks the linear layers into a form that `parameters()` does not see.
        """
        from safetensors import safe_open

        shapes = {}
        for file in self.files:
            with safe_open(file, "np") as tensors:
                shapes |= {key: tensors.get_slice(key).get_shape() for key in tensors.keys()}  # noqa: SIM118
        if self.config.get("tie_word_embeddings", self._text.get("tie_word_embeddings", False)):
            shapes.pop("lm_head.weight", None)
        return sum(map(math.prod, shapes.values())) or None


def checkpoint(name: str | None = None) -> Checkpoint:
    """The checkpoint that a hub id or a folder names, by default the workbook's model.

    Raises `ModelProblem` with one sentence for each way in which a name can be wrong.
    """
    name = name or model()
    folder = Path(name).expanduser()
    if folder.is_dir():
        given, path = str(folder), folder / "config.json"
        if not path.is_file():
            raise ModelProblem(
                f"{name} is a folder without config.json, so it is not a checkpoint: name the folder that holds "
                "config.json, the tokenizer and the .safetensors files."
            )
    elif name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelProblem(f"There is no folder {name}: check the path, or give a hub id such as Qwen/Qwen3-0.6B.")
    else:
        given, path, folder = name, Path(_from_hub(name)), in_cache(name)
    try:
        return Checkpoint(given, folder, json.loads(path.read_text()))
    except ValueError as error:
        raise ModelProblem(f"config.json of {name} is not JSON ({error}): download the checkpoint again.") from error


def in_cache(hub_id: str, revision: str | None = None) -> Path | None:
    """The folder in which the hub's library keeps this model; None where it is not on this disk."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id, revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, ValueError):
        return None


def _from_hub(name: str) -> str:
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub import errors as hub

    try:
        return hf_hub_download(name, "config.json")
    except (hub.GatedRepoError, hub.RepositoryNotFoundError) as error:
        gated = isinstance(error, hub.GatedRepoError)
        why = (
            "is gated: accept its terms on the hub and log in" if gated else "does not exist on the hub, or is private"
        )
        raise ModelProblem(f"The model {name} {why}; check the spelling, or `hf auth login`.") from error
    except hub.EntryNotFoundError as error:
        if constants.HF_HUB_OFFLINE:
            way_out = (
                "the hub is switched off here (HF_HUB_OFFLINE=1, set because the default model needs no network). "
                f"Start the kernel with WORKBOOK_MODEL={name}, or name a folder."
            )
        elif isinstance(error, hub.LocalEntryNotFoundError):
            way_out = "the hub cannot be reached. Check the network, or name a folder."
        else:
            raise ModelProblem(f"The hub's {name} has no config.json, so vLLM cannot serve it.") from error
        raise ModelProblem(f"The model {name} is not in this machine's cache, and {way_out}") from error
    except ValueError as error:  # a name that the hub's own rules forbid
        raise ModelProblem(f"{name!r} is neither a folder nor a hub id: {error}") from error


if __name__ == "__main__":
    print(default_model())
