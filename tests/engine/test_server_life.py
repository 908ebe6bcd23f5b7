"""Nothing of a server is left, however its notebook ends: in real kernels, with a stand-in that is there at once."""

import os
import time
from pathlib import Path

import psutil
import pytest
from kernels import Kernel

START = """
from helpers import server
server.MODULE = "stand_in_server"
"""
SERVE = "running = server.start_server()\nprint(running.process.pid, running.url.split(':')[2].split('/')[0])"


def path() -> str:
    return os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])


def state(kernel: Kernel, text: str) -> tuple[list[int], int]:
    """The pids of a server's processes and its port."""
    pid, port = map(int, text.split()[-2:])
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    assert len(family) == 3, "watcher, server, and the server's child"
    return [process.pid for process in family], port


def nothing_left(pids: list[int], port: int) -> bool:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        listening = {c.laddr.port for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        if not any(map(psutil.pid_exists, pids)) and port not in listening:
            return True
        time.sleep(0.05)
    return False


def stop(kernel):
    assert kernel.run("running.stop(); running.stop(); print(running.alive())") == ("False\n", "")


def exception(kernel):
    _, error = kernel.run("with server.serve() as again:\n    1 / 0")
    assert error.startswith("ZeroDivisionError")
    stop(kernel)


def interrupt(kernel):
    """In a cell that uses the server; the block of `with` ends it."""
    stop(kernel)
    cell = kernel.start("import time\nwith server.serve() as again:\n    print('in', flush=True)\n    time.sleep(60)")
    time.sleep(4)
    kernel.interrupt()
    text, error = kernel.result(cell)
    assert "in" in text and error.startswith("KeyboardInterrupt")


def restart(kernel):
    kernel.manager.restart_kernel(now=True)


def kill(kernel):
    kernel.kill()


@pytest.mark.parametrize("end", [stop, exception, interrupt, restart, kill])
def test_no_process_and_no_port_is_left_after(end):
    with Kernel(PYTHONPATH=path()) as kernel:
        text, error = kernel.run(START + SERVE)
        assert not error
        pids, port = state(kernel, text)
        end(kernel)
        assert nothing_left(pids, port)
        assert not [p for p in psutil.process_iter(["cmdline"]) if "stand_in_server" in (p.info["cmdline"] or ())]


def test_an_interrupt_while_it_starts_ends_it_too(tmp_path):
    with Kernel(PYTHONPATH=path(), STAND_IN_SILENT="1") as kernel:
        kernel.run(START)
        cell = kernel.start("server.start_server()")
        time.sleep(3)
        kernel.interrupt()
        assert kernel.result(cell)[1].startswith("KeyboardInterrupt")
        until = time.monotonic() + 20
        while psutil.Process(kernel.pid).children() and time.monotonic() < until:
            time.sleep(0.05)
        assert psutil.Process(kernel.pid).children() == []


def test_a_server_that_does_not_start_says_why_in_one_sentence(monkeypatch):
    from helpers import server

    monkeypatch.setattr(server, "MODULE", "stand_in_server")
    monkeypatch.setenv("PYTHONPATH", path())
    with pytest.raises(server.ServerStartFailed, match="float99") as error:
        server.start_server(dtype="float99")
    assert str(error.value).startswith("The server did not start:") and "server.log" in str(error.value)
