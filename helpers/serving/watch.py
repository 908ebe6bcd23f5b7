"""Runs a command and ends its whole process group when standard input closes: watch.py GRACE COMMAND...

Whoever starts this holds the other end of standard input, and the kernel closes it however that process dies.
Imports nothing but the standard library, so that it is there at once.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time


def die_with_parent() -> None:
    """In the child: SIGTERM when this watcher itself is killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # 1 is PR_SET_PDEATHSIG


def end(group: int, grace: float) -> None:
    """SIGTERM to the group, SIGKILL to what is left of it after `grace` seconds."""
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, 5.0)):
        until = time.monotonic() + patience
        left = reached(group, number)
        while left and time.monotonic() < until:
            time.sleep(0.05)
            reap()
            left = reached(group, 0)
        if not left:
            return


def reached(group: int, number: int) -> bool:
    """Sends a signal to a group (0: none); whether the group has any process."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def reap() -> None:
    """Takes ended children off the list: a zombie would count as alive."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def main(grace: float, command: list[str]) -> None:
    """Never returns: exits with the command's status, or 0 after it was ended."""
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: grandchildren are reaped here
    started: list[int] = []
    stopped = False  # no Event: its lock would hang where the signal comes while it is being set

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True
        for group in started:
            end(group, grace)
        os._exit(0)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)  # before the child can be seen
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_parent)
    started.append(child.pid)

    def follow() -> None:
        code = child.wait()
        if not stopped:  # else `stop` is ending the group and says with what status
            end(child.pid, grace)  # what it left behind
            os._exit(code if code >= 0 else 128 - code)

    threading.Thread(target=follow, daemon=True).start()
    parent = os.getppid()
    while os.getppid() == parent and not select.select([0], [], [], 1.0)[0]:  # readable: it was closed
        pass
    stop()


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
