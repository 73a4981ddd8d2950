"""The dependency direction, read from the source itself."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ALLOWED: dict[str, set[str]] = {
    "kernels": set(),
    "offload": {"kernels"},
    "scheduler": set(),
    "engine": {"scheduler", "offload", "kernels"},
    "server": {"engine", "scheduler", "offload"},
    "loadgen": set(),
}
COMPOSITION_ROOT = ROOT / "server" / "cli.py"
SCHEDULER_VALUE_TYPES = {
    "scheduler.slo",
    "scheduler.request",
    "scheduler.output",
    "scheduler.config",
    "scheduler.kv_transfer",
}
OFFLOAD_VALUE_TYPES = {"offload.config"}
"""What the server may know of `offload`: the options that it fills in and hands on."""
SERVER_ONLY = {
    "fastapi",
    "starlette",
    "uvicorn",
    "pydantic",
    "pydantic_settings",
    "typer",
    "httpx",
    "prometheus_client",
}
PURE = {"torch", "zmq", "asyncio", "socket", "time", "random", "threading", "subprocess"}


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
        elif isinstance(node, ast.ImportFrom):
            names.add("." * node.level)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return names


def _modules() -> list[tuple[str, Path, str]]:
    found = []
    for folder in ALLOWED:
        paths = sorted((ROOT / folder).rglob("*.py"))
        assert paths, f"{folder}: no module found"
        found += [(folder, path, name) for path in paths for name in sorted(_imports(path))]
    return found


def test_folders_import_only_what_lies_below_them() -> None:
    for folder, path, name in _modules():
        top = name.split(".")[0]
        if top in ALLOWED and path != COMPOSITION_ROOT:
            assert top in ALLOWED[folder] | {folder}, f"{path}: {folder} must not import {name}"


def test_imports_are_absolute() -> None:
    for _, path, name in _modules():
        assert not name.startswith("."), f"{path}: relative import"


def test_the_server_knows_only_the_schedulers_value_types() -> None:
    for folder, path, name in _modules():
        if folder == "server" and path != COMPOSITION_ROOT and name.split(".")[0] == "scheduler":
            assert name in SCHEDULER_VALUE_TYPES, f"{path}: {name} is not a module of value types"


def test_the_server_knows_only_the_options_of_offload() -> None:
    for folder, path, name in _modules():
        if folder == "server" and path != COMPOSITION_ROOT and name.split(".")[0] == "offload":
            assert name in OFFLOAD_VALUE_TYPES, f"{path}: {name} is not a module of options"


def test_the_scheduler_is_pure_python() -> None:
    for folder, path, name in _modules():
        if folder == "scheduler":
            assert name.split(".")[0] not in PURE, f"{path}: the scheduler must not import {name}"


def test_the_lower_folders_need_no_web_framework() -> None:
    for folder, path, name in _modules():
        if folder in {"engine", "scheduler", "offload", "kernels"}:
            assert name.split(".")[0] not in SERVER_ONLY, f"{path}: {folder} must not import {name}"


def test_package_markers_hold_a_docstring_and_nothing_else() -> None:
    for folder in ALLOWED:
        for path in (ROOT / folder).rglob("__init__.py"):
            body = ast.parse(path.read_text()).body
            assert len(body) == 1 and isinstance(body[0], ast.Expr), f"{path}: more than a docstring"
