"""Which model: each way in which a name can be wrong has its sentence, and the default appears whole or not at all."""

import json
import subprocess

import numpy as np
import pytest
from huggingface_hub import constants, errors

from helpers import models


def refusal(name):
    with pytest.raises(models.ModelProblem) as problem:
        models.checkpoint(name)
    assert str(problem.value).count("\n") == 0
    return str(problem.value)


def test_a_folder_with_a_config_is_a_checkpoint(tmp_path):
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 64}')
    assert models.checkpoint(str(tmp_path)).context == 64


def test_a_folder_that_is_no_checkpoint(tmp_path):
    assert "is a folder without config.json" in refusal(str(tmp_path))


def test_a_folder_whose_config_is_torn(tmp_path):
    (tmp_path / "config.json").write_text('{"max_')
    assert "is not JSON" in refusal(str(tmp_path))


@pytest.mark.parametrize("name", ["/no/such/folder", "./nor/this", "a/b/c"])
def test_a_folder_that_does_not_exist(name):
    assert f"There is no folder {name}" in refusal(name)


def test_a_name_that_the_hub_cannot_have():
    assert "neither a folder nor a hub id" in refusal("two words")


def answer(monkeypatch, error, offline=False):
    def download(name, file):
        raise error

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)


def hub_error(kind):
    import httpx

    return kind("no", response=httpx.Response(404, request=httpx.Request("GET", "https://hub")))


def test_a_hub_id_while_the_hub_is_off(monkeypatch):
    answer(monkeypatch, errors.LocalEntryNotFoundError("no"), offline=True)
    assert "Start the kernel with WORKBOOK_MODEL=org/name" in refusal("org/name")


def test_a_hub_id_without_a_network(monkeypatch):
    answer(monkeypatch, errors.LocalEntryNotFoundError("no"))
    assert "the hub cannot be reached" in refusal("org/name")


def test_a_hub_id_that_does_not_exist(monkeypatch):
    answer(monkeypatch, hub_error(errors.RepositoryNotFoundError))
    assert "does not exist on the hub, or is private" in refusal("org/name")


def test_a_gated_model(monkeypatch):
    answer(monkeypatch, hub_error(errors.GatedRepoError))
    assert "is gated: accept its terms" in refusal("org/name")


def test_a_hub_repository_without_a_config(monkeypatch):
    answer(monkeypatch, hub_error(errors.RemoteEntryNotFoundError))
    assert "has no config.json" in refusal("org/name")


def test_the_named_model_comes_before_the_default(monkeypatch):
    monkeypatch.setenv("WORKBOOK_MODEL", "org/name")
    assert models.model() == "org/name"


def test_the_weights_are_counted(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(b"1" * 10)
    (tmp_path / "b.safetensors").write_bytes(b"1" * 5)
    assert models.Checkpoint(str(tmp_path), tmp_path, {}).weight_bytes == 15
    assert models.Checkpoint("org/not-here", None, {}).weight_bytes is None


def test_a_home_is_expanded_and_a_folder_has_its_own_name(tmp_path, monkeypatch):
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text("{}")
    monkeypatch.setenv("HOME", str(tmp_path))
    found = models.checkpoint("~/m")
    assert (found.given, found.folder, found.name) == (str(tmp_path / "m"), tmp_path / "m", "m")
    assert models.Checkpoint("org/name", None, {}).name == "org/name"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def converter(monkeypatch, code=0, stderr=""):
    """A conversion that takes no time: it writes a config.json, and ends as told."""

    def run(command, **options):
        with open(f"{command[-1]}/config.json", "w") as file:
            json.dump({}, file)
        return subprocess.CompletedProcess(command, code, "", stderr)

    monkeypatch.setattr(models.subprocess, "run", run)


def test_the_default_is_converted_once(cache, monkeypatch):
    converter(monkeypatch)
    made = models.default_model()
    assert [entry.name for entry in made.iterdir()] == ["config.json"]
    monkeypatch.setattr(models.subprocess, "run", lambda *a, **k: pytest.fail("converted again"))
    assert models.default_model() == made


def test_what_a_killed_conversion_left_is_removed(cache, monkeypatch):
    (cache / "converting-old").mkdir(parents=True)
    converter(monkeypatch)
    models.default_model()
    assert sorted(entry.name for entry in cache.iterdir()) == [models.DEFAULT, "model.lock"]


def test_a_conversion_that_fails_leaves_nothing_that_looks_finished(cache, monkeypatch):
    converter(monkeypatch, code=1, stderr="Traceback\nOSError: [Errno 28] No space left on device")
    with pytest.raises(models.ModelProblem, match=r"No space left on device.*WORKBOOK_CACHE"):
        models.default_model()
    assert [entry.name for entry in cache.iterdir()] == ["model.lock"]


def test_a_disk_that_is_nearly_full_is_named_before_the_work(cache, monkeypatch):
    monkeypatch.setattr(models, "NEEDED", 2**60)
    with pytest.raises(models.ModelProblem, match=r"are free. Free some space, or set WORKBOOK_CACHE"):
        models.default_model()


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WORKBOOK_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(models.ModelProblem, match="cannot be written"):
        models.default_model()


@pytest.mark.parametrize("tied, count", [(True, 28), (False, 40)])
def test_parameters_are_counted_once_over_all_files(tied, count, tmp_path):
    from safetensors.numpy import save_file

    embedding, other = np.zeros((4, 3), np.float16), np.zeros((4, 4), np.float16)
    save_file({"model.embed_tokens.weight": embedding, "lm_head.weight": embedding}, tmp_path / "a.safetensors")
    save_file({"model.w": other}, tmp_path / "b.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
    assert models.checkpoint(str(tmp_path)).parameters() == count
