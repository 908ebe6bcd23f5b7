"""The structure of `helpers`: which room may import which, one room for vLLM's private parts, and names in strings."""

import ast
import importlib.util
import json
import re
import tomllib
from pathlib import Path

import pytest

import helpers

ROOT = Path(helpers.__file__).parents[1]
FLAT = ("prompts", "sampling", "outputs", "timeline", "roofline", "picture")
# Each room and what it may import; a flat module is a room of its own. Nothing imports `helpers` itself.
MAY = {
    "problems": (),
    "machine": ("problems",),
    "models": ("problems",),
    "convert": (),
    "memory": ("machine", "problems"),
    "engine": ("memory", "machine", "models", "problems"),
    **dict.fromkeys(FLAT, ("engine", "machine", "picture", "problems")),
    "jobs": ("engine", "machine", "models", "problems", *FLAT),
    "serving": ("engine", "machine", "models", "problems", *FLAT),
    "teaching": ("engine", "machine", "models", "problems", "jobs", "serving", *FLAT),
    "widgets": ("engine", "machine", "models", "problems", "jobs", "serving", "teaching", *FLAT),
}
FILES = [path for path in sorted((ROOT / "helpers").rglob("*.py")) if path.name != "__init__.py"]
PRIVATE = r"engine_core|output_processor|model_executor|driver_worker|kv_cache_manager|request_states|vllm\.v1\.worker"


def room(path: Path) -> str:
    return path.relative_to(ROOT / "helpers").with_suffix("").parts[0]


def imported(path: Path) -> set[str]:
    """Full names of what a module imports from this package, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "helpers":
            found |= {f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names if name.name.split(".")[0] == "helpers"}
    return found


def arrows() -> dict[str, set[str]]:
    """The rooms that each room imports."""
    found: dict[str, set[str]] = {name: set() for name in MAY}
    for path in FILES:
        found[room(path)] |= {name.split(".")[1] for name in imported(path)} - {room(path)}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_arrows_run_one_way(path):
    names = {name.split(".")[1] for name in imported(path)} - {room(path)}
    allowed = {*MAY[room(path)], "get_llm", "release_llm"} if path.name == "__main__.py" else set(MAY[room(path)])
    assert names <= allowed


def test_the_rooms_stand_on_five_floors_or_fewer():
    above = arrows()

    def floor(name: str) -> int:
        return 1 + max((floor(other) for other in above[name] if other in MAY), default=0)

    assert max(map(floor, MAY)) <= 5, {name: floor(name) for name in MAY}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_one_module_alone_touches_private_parts_of_vllm(path):
    code = ast.parse(path.read_text())
    names = {node.attr for node in ast.walk(code) if isinstance(node, ast.Attribute)}
    names |= {node.module or "" for node in ast.walk(code) if isinstance(node, ast.ImportFrom)}
    assert path.name == "inside.py" or not [name for name in names if re.fullmatch(PRIVATE, name)]


def test_every_room_is_in_the_map():
    assert not [name for name in MAY if not re.search(rf"\b{name}\b", helpers.__doc__)]


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    module, _, last = name.rpartition(".")
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # not in a package
        return importlib.util.find_spec(module) is not None and hasattr(importlib.import_module(module), last)


def test_modules_that_are_named_in_strings_are_there():
    logging = json.loads((ROOT / "helpers/engine/logging.json").read_text())
    names = [settings["()"] for settings in logging["filters"].values()]
    for file in ("tools/setup.py", "Makefile", "helpers/models.py", "README.md", "helpers/serving/server.py"):
        names += re.findall(r"(?:\"|-m )(helpers(?:\.\w+)+)", (ROOT / file).read_text())
    assert len(names) > 4 and [name for name in names if not exists(name)] == []
    assert (ROOT / "helpers/serving/middleware/key_guard.py").is_file(), "the server's --middleware"


def test_what_is_installed_is_every_room():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["packages"]["find"]["include"] == ["helpers*"]
    for path in (ROOT / "helpers").rglob("*.py"):
        assert (path.parent / "__init__.py").exists() or path.parent.name == "middleware", path
