"""Each known way in which vLLM does not start has one sentence; texts are those of vLLM 0.26 to 0.32."""

import pytest

from helpers.engine.failures import explain

ARGS = {"model": "org/model", "dtype": "bfloat16"}
KNOWN = {
    "Free memory on device cuda:0 (68.27/139.8 GiB) on startup is less than desired GPU memory utilization "
    "(0.92, 128.62 GiB). Decrease GPU memory utilization": "it wants 128.62 GiB of 139.8 GiB, a share of the total, and 68.27",
    "Available memory on node 0 (20.1/23.5 GiB) on startup is less than desired CPU memory utilization (1.0, 23.5 GiB).": (
        "it wants 23.5 GiB of 23.5 GiB, a share of the total, and 20.1 GiB are free"
    ),
    "Available memory on node 0 (3.1/23.5 GiB) on kv cache allocation is less than requested memory for kv (8.0 GiB).": (
        "the KV cache wants 8.0 GiB and 3.1 GiB of RAM are free; pass a smaller kv_cache_memory_bytes"
    ),
    "User-specified max_model_len (9000) is greater than the derived max_model_len (max_position_embeddings=8192 or "
    "model_max_length=None in model's config.json).": "max_model_len=9000 is longer than the 8192 tokens that the model allows",
    "To serve at least one request with the models's max seq len (8192), (0.35 GiB KV cache is needed, which is larger than "
    "the available KV cache memory (0.01 GiB). Based on the available memory, the estimated maximum model length is 224.": (
        "one sequence of max_model_len=8192 tokens needs 0.35 GiB of KV cache, and there are 0.01; pass max_model_len=224 or less"
    ),
    "No available memory for the cache blocks. Try increasing `gpu_memory_utilization`": "raise gpu_memory_utilization",
    "Cannot find any model weights with `org/model`": "has a config.json and no weights",
    "Couldn't instantiate the backend tokenizer from one of": "org/model has no tokenizer files",
    "Model architectures ['FooForCausalLM'] are not supported for now.": "architecture 'FooForCausalLM'; a newer one may",
    "Bfloat16 is only supported on GPUs with compute capability of at least 8.0": "dtype='bfloat16' does not work here",
    "[Errno 98] Address already in use": "a port that it needs is taken",
    "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'": "the shared memory (/dev/shm) is full",
}


@pytest.mark.parametrize(("text", "sentence"), KNOWN.items(), ids=range(len(KNOWN)))
def test_a_known_failure_has_its_sentence(text, sentence):
    said = explain(ValueError(text), "", ARGS)
    assert said.startswith("The engine did not start: ") and sentence in said and "\n" not in said


def test_memory_of_the_card():
    error = RuntimeError("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has")
    assert "2.50 GiB short" in explain(error, "", ARGS)


def test_the_reason_of_a_child_is_found_in_what_it_wrote():
    error = RuntimeError("Engine core initialization failed. See root cause above.")
    said = "(EngineCore pid=7) Traceback\n(EngineCore pid=7) ValueError: the hidden reason\n"
    assert explain(error, said, ARGS).endswith("vLLM refused org/model: ValueError: the hidden reason")


def test_the_reason_in_a_chain_is_found():
    error = RuntimeError("it failed")
    error.__cause__ = ValueError("Cannot find any model weights with `x`")
    assert "no weights" in explain(error, "", ARGS)


def test_an_unknown_failure_says_vllms_first_line():
    assert explain(ValueError("\n  something new\nand more"), "", ARGS).endswith(
        "vLLM refused org/model: something new"
    )
    pydantic = "1 validation error for ModelConfig\n  Value error, no such thing [type=value_error, input_value=1]\n    For more"
    assert explain(ValueError(pydantic), "", ARGS).endswith("refused org/model: Value error, no such thing")
    assert explain(KeyError(), "", ARGS).endswith("KeyError")
