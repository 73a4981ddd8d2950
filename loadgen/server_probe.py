"""Asks a server, before the run, which model it serves and which latency classes it has."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import httpx

from loadgen.config import BenchConfig, BenchError
from loadgen.events import error_text
from loadgen.targets import ClassTargets

_PROBE_TIMEOUT_S = 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says of itself."""

    model: str
    default_class: str | None = None
    """None, and no classes: the server has no `GET /v1/slo`."""
    classes: Mapping[str, ClassTargets] = dataclasses.field(default_factory=dict)
    tiers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Class to the `service_tier` that asks for it."""
    objectives: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Class to the share of its requests that is to meet the targets."""
    max_model_len: int | None = None
    """Tokens of prompt and answer that the model reads; None: it does not tell."""

    def service_tier(self, slo_class: str) -> str:
        return self.tiers.get(slo_class, slo_class)

    def check_classes(self, names: tuple[str, ...]) -> None:
        """Raises BenchError: the server has classes, and one of `names` is not among them."""
        unknown = [name for name in names if self.classes and name not in self.classes]
        if unknown:
            raise BenchError(f"the server has no class {unknown[0]!r}: its classes are {', '.join(self.classes)}")


async def probe_server(config: BenchConfig, http: httpx.AsyncClient) -> ServerInfo:
    """What the server serves; `GET /v1/models` also proves that it is there.

    Raises:
        BenchError: it cannot be reached, refuses the key, or lists no model where none was given.
    """
    models = await _get(http, "/v1/models")
    if models.status_code in (401, 403):
        raise BenchError(f"{http.base_url} refuses the key (HTTP {models.status_code}): give it with --api-key")
    if models.status_code >= 500:
        raise BenchError(f"{http.base_url} is not ready: HTTP {models.status_code}: {error_text(_json(models))}")
    model = config.model or _first_model(_json(models))
    max_model_len = _model_len(_json(models), model)
    if model is None:
        raise BenchError(f"{_root(http)}/v1/models lists no model (HTTP {models.status_code}): name one with --model")
    if max_model_len is None:
        props = await _get(http, "/props")
        max_model_len = _context_len(_json(props)) if props.status_code == 200 else None
    slo = await _get(http, "/v1/slo")
    info = ServerInfo(model, max_model_len=max_model_len)
    return _with_classes(info, _json(slo) if slo.status_code == 200 else None)


async def _get(http: httpx.AsyncClient, path: str) -> httpx.Response:
    try:
        return await http.get(path, timeout=_PROBE_TIMEOUT_S)
    except httpx.InvalidURL as error:
        raise BenchError(f"{http.base_url} is no URL: {error}") from error
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        hint = "Is the server running there?"
        if "WRONG_VERSION_NUMBER" in reason:  # what the TLS library says to an answer that is not TLS
            hint = f"It does not speak TLS: try {_root(http).replace('https:', 'http:', 1)}"
        raise BenchError(f"cannot reach {http.base_url}: {reason}. {hint}") from error


def _root(http: httpx.AsyncClient) -> str:
    return str(http.base_url).rstrip("/")


def _json(response: httpx.Response) -> object:
    try:
        return response.json()
    except ValueError:
        return response.text


def _first_model(body: object) -> str | None:
    data = body.get("data") if isinstance(body, dict) else None
    first = data[0] if isinstance(data, list) and data else None
    name = first.get("id") if isinstance(first, dict) else None
    return name if isinstance(name, str) else None


def _model_len(body: object, model: str | None) -> int | None:
    """As vLLM, SGLang and Headrace list it beside the model."""
    data = body.get("data") if isinstance(body, dict) else None
    for entry in data if isinstance(data, list) else []:
        if isinstance(entry, dict) and entry.get("id") == model:
            return _positive(entry.get("max_model_len"))
    return None


def _context_len(body: object) -> int | None:
    """As llama.cpp's server tells it at /props: of one slot."""
    settings = body.get("default_generation_settings") if isinstance(body, dict) else None
    return _positive(settings.get("n_ctx")) if isinstance(settings, dict) else None


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _with_classes(info: ServerInfo, body: object) -> ServerInfo:
    """`info` with the classes of a `GET /v1/slo` body; what is not in the expected form is left out."""
    entries = body.get("classes") if isinstance(body, dict) else None
    if not isinstance(body, dict) or not isinstance(entries, list):
        return info
    named = {e["name"]: e for e in entries if isinstance(e, dict) and isinstance(e.get("name"), str)}
    tiers = {name: e["service_tiers"][0] for name, e in named.items() if e.get("service_tiers")}
    default = body.get("default_class")
    return dataclasses.replace(
        info,
        default_class=default if isinstance(default, str) else None,
        classes={name: _class_targets(e.get("targets")) for name, e in named.items()},
        tiers={name: tier for name, tier in tiers.items() if isinstance(tier, str)},
        objectives={
            name: float(e["objective"])
            for name, e in named.items()
            if isinstance(e.get("objective"), int | float) and 0.0 < e["objective"] < 1.0
        },
    )


def _class_targets(value: object) -> ClassTargets:
    targets: dict[str, Any] = value if isinstance(value, dict) else {}

    def seconds(key: str) -> float | None:
        number = targets.get(key)
        return number / 1000.0 if isinstance(number, int | float) and not isinstance(number, bool) else None

    return ClassTargets(
        seconds("ttft_base_ms"), seconds("ttft_per_1k_tokens_ms") or 0.0, seconds("tpot_ms"), seconds("max_stall_ms")
    )
