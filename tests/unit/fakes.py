"""A `vllm.LLM` that answers in no time, with the attributes that helpers touches."""

import sys
import types
from dataclasses import dataclass


@dataclass
class EngineArgs:
    model: str = ""
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    seed: int = 0


class Engine:
    """Requests are (id, steps left); a step takes one from each and finishes those at zero."""

    def __init__(self):
        self.output_processor = types.SimpleNamespace(request_states={}, parent_requests={}, external_req_ids={})
        self.during_step = lambda: None
        self.engine_core = types.SimpleNamespace(shutdown=lambda: None)
        config = types.SimpleNamespace(model_config=types.SimpleNamespace(dtype="torch.float32"))
        self.vllm_config = config

    def add_request(self, name, steps):
        self.output_processor.request_states[name] = steps

    def has_unfinished_requests(self):
        return bool(self.output_processor.request_states)

    def step(self):
        self.during_step()
        states = self.output_processor.request_states
        for name in list(states):
            states[name] -= 1
        done = [name for name, left in states.items() if left == 0]
        for name in done:
            del states[name]
        return done

    def abort_request(self, ids, internal=False):
        """As vLLM's: an id of the other kind is ignored."""
        for name in ids:
            for inner in [name] if internal else self.output_processor.external_req_ids.get(name, []):
                self.output_processor.request_states.pop(inner, None)


class LLM:
    made = 0

    def __init__(self, model="", **kwargs):
        LLM.made += 1
        self.llm_engine = Engine()
        self.bars = []

    def enqueue(self, prompts, use_tqdm=True):
        for prompt in prompts:
            if prompt == "too long":
                raise ValueError(prompt)
            self.llm_engine.add_request(prompt, steps=len(prompt))

    def generate(self, prompts, params=None, *, use_tqdm=True):
        self.bars.append(use_tqdm)
        self.enqueue(prompts)
        return self.wait_for_completion()

    def wait_for_completion(self):
        done = []
        while self.llm_engine.has_unfinished_requests():
            done += self.llm_engine.step()
        return sorted(done)


def install(monkeypatch):
    """Puts a fake `vllm` where helpers imports it."""
    modules = {
        name: types.ModuleType(name) for name in ("vllm", "vllm.engine", "vllm.engine.arg_utils", "vllm.distributed")
    }
    modules["vllm"].LLM, modules["vllm"].__version__ = LLM, "0"
    modules["vllm.engine.arg_utils"].EngineArgs = EngineArgs
    modules["vllm.distributed"].cleanup_dist_env_and_memory = lambda: None
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
