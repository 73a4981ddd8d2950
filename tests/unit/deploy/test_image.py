"""The Dockerfile: what it copies, who it runs as, how it starts and ends. Building it needs an engine, which tests have
not; hadolint reads it in `make lint`."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from fnmatch import fnmatch

from tests.deploy_files import DEPLOY, ROOT

DOCKERFILE = ROOT / "Dockerfile"


def _instructions() -> list[tuple[str, str]]:
    """(instruction, the rest), comments gone and lines joined."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split()[0], line.partition(" ")[2]) for line in joined.splitlines() if line.strip()]


def _of(name: str) -> list[str]:
    return [rest for instruction, rest in _instructions() if instruction == name]


def test_the_targets_are_cpu_by_default_and_cuda() -> None:
    stages = [rest.split()[-1] for rest in _of("FROM")]
    assert stages == ["build", "runtime", "cuda", "cpu"], "the last stage is what a build without --target makes"


def test_every_package_of_the_project_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = {pattern.rstrip("*") for pattern in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    copied = {part for rest in _of("COPY") if not rest.startswith("--from") for part in shlex.split(rest)[:-1]}
    assert copied == wanted | {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]}
    for name in copied:
        assert (ROOT / name).exists(), name


def test_nothing_but_what_is_copied_is_sent_to_the_builder() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    sent = {line[1:] for line in lines if line[0] == "!"}
    copied = {part for rest in _of("COPY") if not rest.startswith("--from") for part in shlex.split(rest)[:-1]}
    assert lines[0] == "*" and sent == copied
    excluded = [line for line in lines if line[0] not in "!*" or line.startswith("**/")]
    for name in ("server/__pycache__", "kernels/csrc/a.so"):
        assert any(fnmatch(name, pattern) for pattern in excluded), name


def test_it_runs_as_a_number_that_is_not_root_and_writes_as_group_0() -> None:
    assert _of("USER") == ["10001:0"]
    (made,) = [rest for rest in _of("RUN") if "useradd" in rest]
    assert "--uid 10001 --gid 0" in made and "--group=0 --mode=2770 /home/headrace /cache" in made
    variables = dict(pair.split("=", 1) for rest in _of("ENV") for pair in shlex.split(rest))
    caches = {name: value for name, value in variables.items() if "CACHE" in name and "PIP" not in name}
    caches["HF_HOME"] = variables["HF_HOME"]
    assert len(caches) == 5
    assert all(value == "/cache" or value.startswith("/cache/") for value in caches.values()), caches
    assert _of("VOLUME") == ["/cache"]


def test_signals_reach_the_server_itself() -> None:
    """A shell between them would not hand SIGTERM on."""
    assert json.loads(_of("ENTRYPOINT")[0]) == ["headrace"]
    assert json.loads(_of("CMD")[0]) == ["serve"]
    assert _of("STOPSIGNAL") == ["SIGTERM"]


def test_the_health_check_needs_no_shell_and_no_curl() -> None:
    (check,) = _of("HEALTHCHECK")
    command = json.loads(check.partition("CMD ")[2])
    assert command[:2] == ["python", "-c"] and "/readyz" in command[2]
    compile(command[2], "HEALTHCHECK", "exec")
    assert "curl" not in DOCKERFILE.read_text().replace("without curl", "")


def test_images_have_tags_that_name_a_version() -> None:
    """`latest` is another one tomorrow."""
    text = DOCKERFILE.read_text() + (DEPLOY / "compose.yaml").read_text()
    images = re.findall(r"(?:PYTHON_IMAGE=|image: )(\S+)", text)
    assert len(images) >= 5
    for image in images:
        assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+[\w.-]*(@sha256:\.\.\.)?", image), image
