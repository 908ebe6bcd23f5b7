"""Nothing of a server is left, however its notebook ends: in real kernels, with a stand-in that is there at once.

With CHAOS=1 (`make chaos`) vLLM's own server too.
"""

import os
import time
from pathlib import Path

import psutil
import pytest
from kernels import Kernel

STAND_IN, REAL = "stand_in_server", "vllm.entrypoints.openai.api_server"
START = """
import pathlib, time
from helpers.serving import server
server.MODULE = {module!r}
"""
CELL = """
with server.serve() as running:
    {body}
running.stop()
print("alive:", running.alive())
"""
WAIT = "while not pathlib.Path({go!r}).exists(): time.sleep(0.05)\n    "


def path() -> str:
    return os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])


def family(kernel: Kernel, module: str) -> list[psutil.Process]:
    """The watcher, the server and its children."""
    found = psutil.Process(kernel.pid).children(recursive=True)
    assert len(found) == 3 or (module == REAL and len(found) > 3), f"watcher, server, and its child: {found}"
    return found


def nothing_left(processes: list[psutil.Process], port: int) -> bool:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        listening = {c.laddr.port for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        if not any(process.is_running() for process in processes) and port not in listening:
            return True
        time.sleep(0.05)
    return False


def normal(kernel, cell, go):
    go.touch()
    assert kernel.result(cell) == ("alive: False\n", "")


def exception(kernel, cell, go):
    go.touch()
    assert kernel.result(cell)[1].startswith("ZeroDivisionError")


def interrupt(kernel, cell, go):
    kernel.interrupt()
    assert kernel.result(cell)[1].startswith("KeyboardInterrupt")


def restart(kernel, cell, go):
    kernel.manager.restart_kernel(now=True)


def kill(kernel, cell, go):
    kernel.kill()


@pytest.mark.parametrize("module", [STAND_IN] + [REAL] * bool(os.environ.get("CHAOS")))
@pytest.mark.parametrize("end", [normal, exception, interrupt, restart, kill])
def test_no_process_no_port_and_no_shared_memory_is_left_after(end, module, tmp_path):
    memory = set(os.listdir("/dev/shm"))
    bodies = {normal: WAIT, exception: WAIT + "1 / 0"}
    body = bodies.get(end, "time.sleep(600)").format(go=str(tmp_path / "go"))
    with Kernel(PYTHONPATH=path()) as kernel:
        cell = kernel.start(START.format(module=module) + CELL.format(body=body))
        said = kernel.first_words(cell)
        port = int(said.split("127.0.0.1:")[1].split("/")[0])
        processes = family(kernel, module)
        end(kernel, cell, tmp_path / "go")
        assert nothing_left(processes, port)
        assert not [p for p in psutil.process_iter(["cmdline"]) if module in (p.info["cmdline"] or ())]
    if module == REAL:  # that run is alone on the machine
        assert set(os.listdir("/dev/shm")) <= memory


def test_an_interrupt_while_it_starts_ends_it_too(tmp_path):
    with Kernel(PYTHONPATH=path(), STAND_IN_SILENT="1") as kernel:
        kernel.run(START.format(module=STAND_IN))
        cell = kernel.start("server.start_server()")
        time.sleep(3)
        kernel.interrupt()
        assert kernel.result(cell)[1].startswith("KeyboardInterrupt")
        until = time.monotonic() + 20
        while psutil.Process(kernel.pid).children() and time.monotonic() < until:
            time.sleep(0.05)
        assert psutil.Process(kernel.pid).children() == []


def test_a_server_that_does_not_start_says_why_in_one_sentence(monkeypatch):
    from helpers.serving import server

    monkeypatch.setattr(server, "MODULE", STAND_IN)
    monkeypatch.setenv("PYTHONPATH", path())
    with pytest.raises(server.ServerStartFailed, match="float99") as error:
        server.start_server(dtype="float99")
    assert str(error.value).startswith("The server did not start:") and "server.log" in str(error.value)


def test_a_second_server_ends_the_first(monkeypatch, capsys):
    from helpers.serving import server

    monkeypatch.setattr(server, "MODULE", STAND_IN)
    monkeypatch.setenv("PYTHONPATH", path())
    first = server.start_server()
    second = server.start_server()
    assert not first.alive() and second.alive()
    assert f"The server at {first.url} is stopped first" in capsys.readouterr().out
    with pytest.raises(RuntimeError, match="The server has ended; its log: "):
        first.metrics()
    second.stop()
