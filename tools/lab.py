"""Starts JupyterLab on the first notebook: loopback only, with a token that stays the same from start to start."""

import json
import os
import secrets
import socket
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIRST = "notebooks/00_start_here.ipynb"


def token() -> str:
    """The token of this checkout, made on the first start; only its owner can read the file."""
    path = ROOT / ".jupyter-token"
    if not path.exists():
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(24))
    return path.read_text()


def free_port(first: int = 8888) -> int:
    """The first port from `first` on that nobody listens on."""
    for port in range(first, first + 100):
        if not answers(port):
            return port
    sys.exit(f"No free port from {first} to {first + 99}: end another server first.")


def without_news() -> None:
    """Switches off JupyterLab's question about news, and with it its look at the network."""
    page = ROOT / ".venv/etc/jupyter/labconfig/page_config.json"
    page.parent.mkdir(parents=True, exist_ok=True)
    if not page.exists():
        page.write_text(json.dumps({"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}))


def trust() -> None:
    """Marks the workbook's notebooks as trusted: JupyterLab strips the views saved in others of their styles."""
    import nbformat
    from nbformat.sign import NotebookNotary

    notary = NotebookNotary()
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        notary.sign(nbformat.read(path, as_version=4))


def answers(port: int) -> bool:
    """Whether somebody listens on this port of the loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def knows_token(port: int) -> bool:
    """Whether the server on this port of the loopback is the one that was given JUPYTER_TOKEN."""
    address = f"http://127.0.0.1:{port}/api/status?token={os.environ['JUPYTER_TOKEN']}"
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address, timeout=5):
            return True
    except OSError:  # nobody there, or another's: 403
        return False


def say_when_ready(port: int, url: str, server: int) -> None:
    """Prints the address once the process `server` answers there, so that a click on it does not come too early.

    Another server may have taken the port since it was free; then JupyterLab ends with its own words, and this without.
    """
    print("Starting JupyterLab (usually 5 s) ...", flush=True)
    while os.getppid() == server:
        if knows_token(port):
            print(f"JupyterLab: {url}", flush=True)
            print(f"From another machine: ssh -L {port}:127.0.0.1:{port} HOST. Ctrl-C twice ends it.", flush=True)
            return
        time.sleep(0.1)


def main() -> None:
    without_news()
    trust()
    port = free_port()
    os.environ["JUPYTER_TOKEN"] = token()
    command = [str(ROOT / ".venv/bin/jupyter"), "lab", f"--notebook-dir={ROOT}", "--ServerApp.ip=127.0.0.1"]
    command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--ServerApp.log_level=WARN"]
    command += [
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]  # no network
    if os.geteuid() == 0:
        command.append("--allow-root")  # containers
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        command.append(str(ROOT / FIRST))  # a browser opens it
    else:
        command.append("--no-browser")
    url = f"http://127.0.0.1:{port}/lab/tree/{FIRST}?token={os.environ['JUPYTER_TOKEN']}"
    server = os.getpid()
    if os.fork() == 0:  # the child says when it is ready, and this process turns into JupyterLab
        say_when_ready(port, url, server)
        os._exit(0)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
