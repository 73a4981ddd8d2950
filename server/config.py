"""What the HTTP process serves, to whom, and within which limits."""

from __future__ import annotations

import dataclasses
from typing import Literal

from server.known_model import DEFAULT_ALIAS


@dataclasses.dataclass(frozen=True, slots=True)
class ServerConfig:
    """The HTTP process. `metadata` holds the command line's help, bounds and, where it differs, the option's name."""

    model: str = dataclasses.field(
        default=DEFAULT_ALIAS, metadata={"help": "Model to serve: a directory, a GGUF file, a hub id or an alias."}
    )
    host: str = dataclasses.field(default="127.0.0.1", metadata={"help": "Address to listen on."})
    port: int = dataclasses.field(
        default=8000, metadata={"help": "Port to listen on; 0 takes a free one.", "min": 0, "max": 65535}
    )
    served_model_name: str | None = dataclasses.field(
        default=None, metadata={"help": "Id of the model in the API; default: the alias, hub id or file name given."}
    )
    api_keys: tuple[str, ...] = dataclasses.field(
        default=(),
        repr=False,
        metadata={
            "help": "Key that clients must send; may be repeated. None: no key is asked for.",
            "option": "api-key",
        },
    )
    metrics_without_key: bool = dataclasses.field(
        default=False, metadata={"help": "Serve /metrics without a key even where the API needs one."}
    )
    cors_origins: tuple[str, ...] = dataclasses.field(
        default=(),
        metadata={
            "help": "Origin that browsers may call from; may be repeated. None: CORS off.",
            "option": "cors-origin",
        },
    )
    serve_openapi: bool = dataclasses.field(default=True, metadata={"help": "Publish /openapi.json."})
    max_body_bytes: int = dataclasses.field(
        default=4 * 1024**2, metadata={"help": "Largest request body; a larger one gets 413.", "min": 1024}
    )
    body_timeout_s: float = dataclasses.field(
        default=30.0, metadata={"help": "Seconds within which a body must arrive.", "min": 0.1}
    )
    max_concurrent_requests: int = dataclasses.field(
        default=1024,
        metadata={"help": "Generations in the server at a time, queued ones included; above: 503.", "min": 1},
    )
    max_choices: int = dataclasses.field(
        default=128, metadata={"help": "Choices of one request: prompts times n.", "min": 1}
    )
    max_pending_tokens: int = dataclasses.field(
        default=4096,
        metadata={"help": "Tokens that wait for a client that does not read before its stream is closed.", "min": 1},
    )
    text_workers: int = dataclasses.field(
        default=2, metadata={"help": "Threads that tokenize and render chat templates.", "min": 1, "max": 64}
    )
    text_timeout_s: float = dataclasses.field(
        default=10.0, metadata={"help": "Seconds that tokenizing or rendering one request may take.", "min": 0.1}
    )
    drain_timeout_s: float = dataclasses.field(
        default=30.0, metadata={"help": "Seconds that running requests may take to end after SIGTERM.", "min": 0.0}
    )
    stall_timeout_s: float = dataclasses.field(
        default=10.0,
        metadata={
            "help": "Seconds without the end of a step, with work to do, after which the engine counts as stalled.",
            "min": 0.5,
        },
    )
    default_class: str | None = dataclasses.field(
        default=None,
        metadata={"help": "Latency class of requests that name none; default: the class file's, else standard."},
    )
    classes_path: str | None = dataclasses.field(
        default=None, metadata={"help": "TOML file of latency classes that replaces the built-in table."}
    )
    request_log_path: str | None = dataclasses.field(
        default=None, metadata={"help": "Append the timestamps and the outcome of every request to this JSONL file."}
    )
    ready_file_path: str | None = dataclasses.field(
        default=None, metadata={"help": "Write the server's URL to this file once it answers requests."}
    )
    log_level: Literal["debug", "info", "warning", "error"] = dataclasses.field(
        default="info", metadata={"help": "Least severe messages shown."}
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            low, high = field.metadata.get("min"), field.metadata.get("max")
            if low is not None and value < low:
                raise ValueError(f"{field.name} is {value}, it must be at least {low}")
            if high is not None and value > high:
                raise ValueError(f"{field.name} is {value}, it must be at most {high}")
        if any(not key.strip() for key in self.api_keys):
            raise ValueError("an API key is empty: give it characters, or leave the option out to ask for no key")
