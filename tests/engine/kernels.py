"""Real Jupyter kernels, to be interrupted and killed."""

import os
import queue
import signal
import tempfile
import time

from jupyter_client.manager import KernelManager

START = """
import os
from helpers import engines, get_llm, my_turn, release_llm
llm = get_llm()
from vllm import SamplingParams
"""
ONE = """
outputs = llm.generate(["one"], SamplingParams(max_tokens=4))
print(len(outputs), outputs[0].prompt, len(llm.llm_engine.output_processor.request_states))
"""


class Kernel:
    """One kernel; `run` returns what a cell printed and, if it failed, the error's name and message."""

    def __init__(self, **environment: str):
        # Sockets in a folder of their own: the usual names, in the working folder, are every other kernel's too.
        self.folder = tempfile.TemporaryDirectory(prefix="kernel-")
        self.manager = KernelManager(kernel_name="python3", transport="ipc", ip=f"{self.folder.name}/ipc")
        self.manager.start_kernel(env=os.environ | environment)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def start(self, code: str) -> str:
        """Sends a cell and does not wait for it."""
        return self.client.execute(code)

    def result(self, message: str, timeout: float = 240) -> tuple[str, str]:
        """Waits for a cell: its printed text and its error, "" where there is none."""
        text, error, end = "", "", time.monotonic() + timeout
        while True:
            try:
                reply = self.client.get_iopub_msg(timeout=max(0.1, end - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"the cell did not end within {timeout} s; so far: {text}") from None
            if reply["parent_header"].get("msg_id") != message:
                continue
            kind, content = reply["msg_type"], reply["content"]
            if kind == "stream":
                text += content["text"]
            elif kind == "execute_result":
                text += content["data"]["text/plain"]
            elif kind == "error":
                error = f"{content['ename']}: {content['evalue']}"
            elif kind == "status" and content["execution_state"] == "idle":
                return text, error

    def first_words(self, message: str, timeout: float = 240) -> str:
        """Waits for the first text that a running cell prints."""
        while True:
            reply = self.client.get_iopub_msg(timeout=timeout)
            if reply["parent_header"].get("msg_id") == message and reply["msg_type"] == "stream":
                return reply["content"]["text"]

    def run(self, code: str, timeout: float = 240) -> tuple[str, str]:
        return self.result(self.start(code), timeout)

    def interrupt(self) -> None:
        """The stop button."""
        self.manager.interrupt_kernel()

    @property
    def pid(self) -> int:
        return self.manager.provisioner.process.pid

    def kill(self) -> None:
        """kill -9 of the kernel's process alone."""
        os.kill(self.pid, signal.SIGKILL)
        self.manager.provisioner.process.wait()

    def __enter__(self) -> "Kernel":
        return self

    def __exit__(self, *_) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.folder.cleanup()
