"""Public failures of sampling, prompts and outputs, each on the real engine; the ids name the cases."""

import copy
import json

import pytest

from helpers import outputs, prompts, sampling

REFUSES_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a colour."}


@pytest.fixture(scope="module")
def llm():
    from helpers import get_llm, release_llm

    yield get_llm(max_model_len=512)
    release_llm()


def params(**settings):
    from vllm import SamplingParams

    return SamplingParams(**({"temperature": 0, "max_tokens": 8} | settings))


def test_explicit_params_do_not_take_the_file_and_merged_ones_do(llm):
    file = llm.get_default_sampling_params()
    explicit, merged = params(temperature=1.0, max_tokens=64), sampling.merged(llm, max_tokens=64)
    assert (file.temperature, file.top_p) == (merged.temperature, merged.top_p) == (0.2, 0.9)
    assert (
        explicit.top_p == 1.0 and merged.max_tokens == 64 and sampling.merged(llm, temperature=0.7).temperature == 0.7
    )


def test_a_greedy_prompt_alone_and_in_batches(llm):
    [alone] = llm.generate("The capital of France is", params(logprobs=5))
    for size in (8, 64):
        batch = llm.generate(
            [f"Fact {number}: the" for number in range(size - 1)] + ["The capital of France is"], params()
        )
        parted = outputs.first_difference(alone, batch[-1])
        assert parted is None or parted["margin"] < outputs.NEAR_TIE, parted


def test_a_schema_in_the_old_form_is_refused_and_in_the_new_one_obeyed(llm):
    from vllm.sampling_params import StructuredOutputsParams

    for old in ({"best_of": 2}, {"guided_json": {}}, {"guided_decoding": None}):
        with pytest.raises(TypeError):
            params(**old)
    choice = StructuredOutputsParams(choice=["red", "blue"])
    [output] = llm.chat([USER], params(structured_outputs=choice))
    assert output.outputs[0].text in ("red", "blue")


def test_json_that_was_cut_is_truncated_and_not_invalid(llm):
    from vllm.sampling_params import StructuredOutputsParams

    schema = {"type": "object", "properties": {"colour": {"type": "string", "maxLength": 30}}, "required": ["colour"]}
    shape = StructuredOutputsParams(json=schema)
    [cut] = llm.chat([USER], params(max_tokens=3, structured_outputs=shape))
    [whole] = llm.chat([USER], params(max_tokens=100, structured_outputs=shape))
    assert outputs.completions([cut, whole]).truncated.to_list() == [True, False]
    assert list(json.loads(whole.outputs[0].text)) == ["colour"]
    with pytest.raises(json.JSONDecodeError):
        json.loads(cut.outputs[0].text)


def test_log_probabilities_are_raw(llm):
    ask = [params(temperature=t, max_tokens=1, logprobs=1, seed=3) for t in (0.5, 1.5)]
    best = [max(o.outputs[0].logprobs[0].values(), key=lambda e: e.logprob) for o in llm.generate(["It is"] * 2, ask)]
    assert best[0].logprob == pytest.approx(best[1].logprob, abs=0.01)


@pytest.mark.parametrize("bad", [{"prompt_token_ids": [28] * 5000}, {"prompt_token_ids": [28] * 512}, ""])
def test_one_bad_prompt_fails_the_call_and_is_known_before_it(llm, bad):
    ids = bad["prompt_token_ids"] if bad else []
    assert prompts.problem(ids, 512)
    with pytest.raises(Exception, match=r"length|long|empty"):
        llm.generate(["good", bad, "good"], params())
    assert not llm.llm_engine.has_unfinished_requests() and prompts.problem([28] * 511, 512) is None
    assert len(llm.generate({"prompt_token_ids": [28] * 511}, params())[0].outputs[0].token_ids) == 1


def test_a_list_of_another_length_is_not_a_valueerror_and_leaves_nothing(llm):
    with pytest.raises(Exception, match="must be the same") as error:
        llm.generate(["a", "b"], [params()] * 3)
    assert not isinstance(error.value, ValueError) and not llm.llm_engine.has_unfinished_requests()


def test_three_ways_out_of_a_missing_template(llm):
    tokenizer = llm.get_tokenizer()
    template, right = tokenizer.chat_template, llm.chat([USER], params())[0]
    try:
        tokenizer.chat_template = None
        with pytest.raises(ValueError, match="chat template"):
            llm.chat([USER], params())
        passed = llm.chat([USER], params(), chat_template=template)[0]
    finally:
        tokenizer.chat_template = template
    rendered = tokenizer.apply_chat_template([USER], add_generation_prompt=True, tokenize=False)
    by_hand = llm.generate(rendered, params())[0]
    assert right.prompt_token_ids == passed.prompt_token_ids == by_hand.prompt_token_ids


def test_a_template_by_hand_on_a_tokenizer_that_adds_bos(llm):
    from tokenizers.processors import TemplateProcessing

    tokenizer = copy.deepcopy(llm.get_tokenizer())
    bos, number = tokenizer.bos_token, tokenizer.bos_token_id
    adding = tokenizer.backend_tokenizer
    adding.post_processor = TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, number)])
    rendered = tokenizer.apply_chat_template([USER], add_generation_prompt=True, tokenize=False)
    assert prompts.doubled_bos(adding.encode(rendered).ids, number)
    assert not prompts.doubled_bos(adding.encode(rendered, add_special_tokens=False).ids, number)


def test_a_prompt_is_cut_on_request_and_by_how_much_is_known(llm):
    text = "one two three four five six seven eight"
    with pytest.raises(TypeError, match="tokenization_kwargs"):
        sampling.check_names({"truncate_prompt_tokens": 3})
    [cut] = llm.generate(text, params(), tokenization_kwargs={"truncate_prompt_tokens": 3})
    assert len(cut.prompt_token_ids) == 3 < len(llm.get_tokenizer().encode(text))


def test_token_ids_go_into_a_dict(llm):
    with pytest.raises(TypeError, match="prompt_token_ids"):
        llm.generate(prompt_token_ids=[[1, 2]])
    assert llm.generate({"prompt_token_ids": [1, 2]}, params())[0].prompt_token_ids == [1, 2]


def test_a_template_that_refuses_the_system_role_names_it(llm):
    with pytest.raises(Exception, match="System role"):
        llm.chat([SYSTEM, USER], params(), chat_template=REFUSES_SYSTEM)
    [output] = llm.chat(prompts.without_system([SYSTEM, USER]), params(), chat_template=REFUSES_SYSTEM)
    assert "Be brief." in llm.get_tokenizer().decode(output.prompt_token_ids)


def test_one_llm_is_no_scheduler_over_replicas(llm):
    from vllm import LLM

    with pytest.raises(ValueError, match="data_parallel_size"):
        LLM(model=llm.llm_engine.model_config.model, data_parallel_size=2)


def test_preemptions_of_a_small_cache_are_in_the_timeline(llm):
    from helpers import get_llm, release_llm
    from helpers.timeline import record

    config = llm.llm_engine.model_config
    hf = config.hf_config
    token_bytes = 2 * hf.num_hidden_layers * hf.num_key_value_heads * hf.head_dim * config.dtype.itemsize
    release_llm()
    try:
        llm = get_llm(kv_cache_memory_bytes=800 * token_bytes, max_model_len=128, block_size=32)
        with record(llm) as timeline:
            found = llm.generate(["Once upon a time"] * 32, params(max_tokens=60, ignore_eos=True))
        assert timeline.iterations().preempted.str.len().sum() > 0 and "preempted" in timeline.transcript()
        assert all(len(output.outputs[0].token_ids) == 60 for output in found)
    finally:
        release_llm()
