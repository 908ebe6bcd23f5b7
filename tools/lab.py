"""Starts JupyterLab on the first notebook: loopback only, with a token that stays the same from start to start."""

import os
import secrets
import socket
import sys
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
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
    sys.exit(f"No free port from {first} to {first + 99}: end another server first.")


def main() -> None:
    port = free_port()
    os.environ["JUPYTER_TOKEN"] = token()
    command = [str(ROOT / ".venv/bin/jupyter"), "lab", f"--notebook-dir={ROOT}", "--ServerApp.ip=127.0.0.1"]
    command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--ServerApp.log_level=WARN"]
    if os.geteuid() == 0:
        command.append("--allow-root")  # containers
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        command.append(str(ROOT / FIRST))  # a browser opens it
    else:
        command.append("--no-browser")
    url = f"http://127.0.0.1:{port}/lab/tree/{FIRST}?token={os.environ['JUPYTER_TOKEN']}"
    print(f"JupyterLab: {url}\nFrom another machine: ssh -L {port}:127.0.0.1:{port} HOST. Ctrl-C ends it.", flush=True)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
