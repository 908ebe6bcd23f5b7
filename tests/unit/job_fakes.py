"""An engine for jobs that answers from the prompt alone, and rows for it."""

import json
from types import SimpleNamespace as Fake


class Output(Fake):
    """What `vllm.RequestOutput` has and a job reads."""


class Engine:
    """Runs at most `slots` requests; each takes as many steps as its text asks for: they finish out of order."""

    def __init__(self, slots: int = 4, reason=lambda text: "stop"):
        self.slots, self.reason, self.requests = slots, reason, {}
        self.count = self.steps = self.most = 0
        self.model_config = Fake(model="/models/fake", dtype="torch.float32", quantization=None, revision=None)
        self.model_config.get_diff_sampling_param = lambda: {"temperature": 0.2}
        self.vllm_config = Fake(scheduler_config=Fake(max_num_seqs=slots))
        self.engine_core = Fake(resources=None)
        self.before_step = lambda: None
        self.aborted = []

    def add(self, text: str, params) -> str:
        if not text.strip():
            raise ValueError("the prompt is empty")
        if len(text) > 1000:
            raise ValueError("the prompt is longer than the maximum model length")
        self.count += 1
        self.requests[str(self.count)] = [text, params, 1 + len(text) % 7]
        return f"{self.count}-9f3a"  # inside, vLLM appends random letters to a request's number

    def step(self) -> list:
        self.before_step()
        self.steps += 1
        self.most = max(self.most, len(self.requests))
        done = []
        for name in list(self.requests)[: self.slots]:
            entry = self.requests[name]
            entry[2] -= 1
            if entry[2] <= 0:
                text, params, _ = self.requests.pop(name)
                done.append(answer(name, text, params, self.reason(text)))
        return done

    def abort_request(self, ids, internal=False):
        self.aborted += ids
        for name in ids:
            self.requests.pop(name)


class LLM:
    """The methods of `vllm.LLM` that a job calls."""

    def __init__(self, **settings):
        self.llm_engine = Engine(**settings)
        self.given = []

    def enqueue(self, prompts, params, use_tqdm=True):
        assert use_tqdm is False
        [prompt] = prompts
        text = prompt if isinstance(prompt, str) else " ".join(map(str, prompt["prompt_token_ids"]))
        self.given.append((text, params))
        return [self.llm_engine.add(text, params)]

    def enqueue_chat(self, conversations, params, use_tqdm=True, chat_template=None):
        [messages] = conversations
        if any(message["role"] not in ("system", "user", "assistant") for message in messages):
            raise ValueError("the template does not know the role")
        return self.enqueue([said(messages)], params, use_tqdm)


def said(messages) -> str:
    """The text of a conversation."""
    parts = (m["content"] if isinstance(m["content"], str) else m["content"][0]["text"] for m in messages)
    return " ".join(parts)


def answer(name, text, params, reason) -> Output:
    """The same output for the same text and seed."""
    tokens = list(text.encode()[: 1 + len(text) % 7])
    words = f"{text[:20]}|{params.seed}"
    completion = Fake(index=0, text=words, token_ids=tokens, finish_reason=reason, logprobs=None, stop_reason=None)
    return Output(request_id=name, finished=True, prompt_token_ids=[1, 2], outputs=[completion])


def plain(number: int, **more) -> dict:
    return {"id": f"row-{number}", "prompt": f"text {'x' * (number % 11)} {number}", "temperature": 0} | more


def batch(number: int, **body) -> dict:
    content = f"text {'x' * (number % 11)} {number}"
    base = {"messages": [{"role": "user", "content": content}], "temperature": 0}
    return {"custom_id": f"row-{number}", "method": "POST", "url": "/v1/chat/completions", "body": base | body}


def write(path, rows):
    """Rows as JSON lines; bytes as they are."""
    pieces = (row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows)
    path.write_bytes(b"\n".join(pieces) + b"\n")
    return path


def read(path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]
