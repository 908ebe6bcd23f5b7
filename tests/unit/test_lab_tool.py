"""tools/lab.py: the token is kept, private, and the port is one that is free."""

import http.server
import importlib.util
import os
import socket
import stat
import subprocess
import threading
from pathlib import Path
from typing import ClassVar

import pytest


@pytest.fixture
def lab(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("lab_tool", Path(__file__).parents[2] / "tools/lab.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def test_the_token_stays_and_only_its_owner_reads_it(lab, tmp_path):
    first = lab.token()
    assert len(first) == 48 and lab.token() == first
    assert stat.S_IMODE((tmp_path / ".jupyter-token").stat().st_mode) == 0o600


def test_make_lab_runs_in_the_environment_that_has_what_it_imports():
    says = subprocess.run(["make", "-n", "lab"], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert ".venv/bin/python tools/lab.py" in says.stdout, says


def test_a_port_in_use_is_passed_over(lab):
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        assert lab.free_port(busy.getsockname()[1]) > busy.getsockname()[1]


def test_jupyter_listens_on_loopback_with_the_token_out_of_sight(lab, monkeypatch):
    started = []
    monkeypatch.setattr(lab.os, "execv", lambda path, command: started.append(command))
    monkeypatch.setattr(lab.os, "fork", lambda: 1)
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("JUPYTER_TOKEN", "")
    lab.main()
    assert "--ServerApp.ip=127.0.0.1" in started[0] and "--no-browser" in started[0]
    assert lab.token() not in " ".join(started[0]) and lab.os.environ["JUPYTER_TOKEN"] == lab.token()


class Lab(http.server.BaseHTTPRequestHandler):
    """A server that wants the token `right`, after one answer that says it is not ready."""

    seen: ClassVar[list[str]] = []

    def do_GET(self):
        self.seen.append(self.path)
        self.send_response(503 if len(self.seen) == 1 else 200 if self.path == "/api/status?token=right" else 403)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def port(monkeypatch):
    monkeypatch.setattr(Lab, "seen", [])
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Lab) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_the_address_is_said_once_it_answers(lab, port, capsys, monkeypatch):
    monkeypatch.setenv("JUPYTER_TOKEN", "right")
    lab.say_when_ready(port, "http://address", os.getppid())
    assert len(Lab.seen) == 2 and "JupyterLab: http://address" in capsys.readouterr().out


def test_no_address_is_said_where_another_server_took_the_port(lab, port, capsys, monkeypatch):
    monkeypatch.setenv("JUPYTER_TOKEN", "another's")
    monkeypatch.setattr(lab.time, "sleep", lambda _: len(Lab.seen) > 2 and monkeypatch.setattr(lab.os, "getppid", int))
    lab.say_when_ready(port, "http://address", os.getppid())  # JupyterLab ends, since it cannot have the port
    assert len(Lab.seen) == 3 and "address" not in capsys.readouterr().out


def test_the_question_about_news_is_off_and_a_users_own_settings_stay(lab, tmp_path):
    page = tmp_path / ".venv/etc/jupyter/labconfig/page_config.json"
    lab.without_news()
    assert "announcements" in page.read_text()
    page.write_text("{}")
    lab.without_news()
    assert page.read_text() == "{}"
