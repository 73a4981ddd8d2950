"""What a load test sends, when, and where the result goes."""

from __future__ import annotations

import dataclasses
from typing import Literal

_ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/models")


class BenchError(Exception):
    """The load test cannot run; the message says what to do about it."""


@dataclasses.dataclass(frozen=True, slots=True)
class BenchConfig:
    """One load test. `metadata` holds the command line's help, bounds and, where it differs, the option's name."""

    url: str
    """Of the server, with or without `/v1`."""
    model: str | None = dataclasses.field(
        default=None, metadata={"help": "Model to ask for; default: the first that the server lists."}
    )
    api: Literal["chat", "completions"] = dataclasses.field(
        default="chat", metadata={"help": "Endpoint: /v1/chat/completions or /v1/completions."}
    )
    api_key: str | None = dataclasses.field(
        default=None, repr=False, metadata={"help": "Key sent as the bearer token; default: none."}
    )
    rate: float | None = dataclasses.field(
        default=None,
        metadata={
            "help": "Open loop: requests per second, whatever the server does. Default: 1 a second, or with --trace "
            "the trace's own rate; a trace's time is scaled to this mean rate.",
            "min": 1e-6,
        },
    )
    arrivals: Literal["poisson", "constant", "gamma", "trace"] | None = dataclasses.field(
        default=None,
        metadata={
            "help": "Open loop: random gaps between arrivals, equal ones, bursts (gamma), or the times of --trace. "
            "Default: poisson, or trace where there is one."
        },
    )
    burstiness: float = dataclasses.field(
        default=1.0,
        metadata={
            "help": "Shape of the gaps between arrivals, whose coefficient of variation is its inverse square root: 1 "
            "is Poisson, less is more bursty. Another number than 1 makes the arrivals gamma.",
            "min": 1e-3,
        },
    )
    trace_path: str | None = dataclasses.field(
        default=None,
        metadata={
            "help": "Replay this trace: lengths, shared prefixes, conversations, classes and times are its own. "
            "Its rows without a class are drawn from --class."
        },
    )
    too_long: Literal["fail", "drop", "clip"] = dataclasses.field(
        default="fail",
        metadata={"help": "What becomes of a trace's rows that are longer than the model reads; they are counted."},
    )
    max_model_len: int | None = dataclasses.field(
        default=None,
        metadata={
            "help": "Tokens of prompt and answer that the model reads; default: what the server tells, else no limit.",
            "min": 2,
        },
    )
    calibrate: bool = dataclasses.field(
        default=True,
        metadata={
            "help": "Before the run, find how many tokens the server makes of a word: by its /tokenize, else, for a "
            "trace, by two short requests. Off: one token a word."
        },
    )
    concurrency: int | None = dataclasses.field(
        default=None,
        metadata={"help": "Closed loop instead: clients that each send when their last answer is there.", "min": 1},
    )
    requests: int | None = dataclasses.field(
        default=None,
        metadata={"help": "Requests to send; default: 100, or no bound where --duration is given.", "min": 1},
    )
    duration_s: float | None = dataclasses.field(
        default=None,
        metadata={
            "help": "Seconds during which requests are sent; their answers are then waited for, each for up to "
            "--timeout.",
            "min": 0.001,
            "option": "duration",
        },
    )
    classes: tuple[str, ...] = dataclasses.field(
        default=(),
        metadata={
            "help": "Latency class and its share: NAME:SHARE[,prompt=TOKENS][,output=TOKENS], TOKENS being a number or "
            "LOW-HIGH; may be repeated. More keys: rate, arrivals and cv (own arrivals), prefix (tokens that its "
            "prompts share), turns and think (conversations; think in seconds, LOW-HIGH too), ttft, tpot, stall and "
            "e2e (targets, such as 300ms or 2s), header=NAME:VALUE, service_tier. None: requests name no class.",
            "option": "class",
        },
    )
    class_in: Literal["header", "service_tier"] = dataclasses.field(
        default="header", metadata={"help": "Name the class in the header x-slo-class or in the body's service_tier."}
    )
    slo: tuple[str, ...] = dataclasses.field(
        default=(),
        metadata={
            "help": "Targets to judge a class by: NAME:ttft_ms=N,tpot_ms=N,max_stall_ms=N,e2e_ms=N; may be repeated. "
            "What is not given is what the server tells in its headers and at /v1/slo.",
        },
    )
    prompt_tokens: str = dataclasses.field(
        default="128", metadata={"help": "About how many tokens a prompt has: a number, or LOW-HIGH."}
    )
    output_tokens: str = dataclasses.field(
        default="32", metadata={"help": "Tokens to generate: a number, or LOW-HIGH."}
    )
    shared_prefix_tokens: int = dataclasses.field(
        default=0, metadata={"help": "About how many tokens all prompts begin with alike, besides their own.", "min": 0}
    )
    ignore_eos: bool = dataclasses.field(
        default=True, metadata={"help": "Generate the full length past the model's own end (not an OpenAI field)."}
    )
    cancel_share: float = dataclasses.field(
        default=0.0,
        metadata={
            "help": "Share of requests whose client leaves after some tokens; they are counted apart.",
            "min": 0.0,
            "max": 1.0,
        },
    )
    warm_up_s: float = dataclasses.field(
        default=0.0,
        metadata={
            "help": "Seconds from the start whose requests are sent but not counted.",
            "min": 0.0,
            "option": "warm-up",
        },
    )
    cool_down_s: float = dataclasses.field(
        default=0.0,
        metadata={
            "help": "Seconds before the last request is due (or before the end of --duration) whose requests are sent "
            "but not counted.",
            "min": 0.0,
            "option": "cool-down",
        },
    )
    length_field: Literal["max_tokens", "max_completion_tokens"] = dataclasses.field(
        default="max_tokens", metadata={"help": "Field that bounds the answer: OpenAI's newer models take the second."}
    )
    stream_usage: bool = dataclasses.field(
        default=True,
        metadata={"help": "Ask for token counts at the end of the stream; off for servers that refuse stream_options."},
    )
    temperature: float = dataclasses.field(default=0.0, metadata={"help": "Sampling temperature.", "min": 0.0})
    seed: int = dataclasses.field(
        default=0,
        metadata={"help": "Of arrivals, classes and prompts: the same seed sends the same, cached prompts too."},
    )
    prompt_salt: int = dataclasses.field(
        default=0,
        metadata={
            "help": "Another number changes the words of the prompts and nothing else, so that a server's prefix cache "
            "does not know them from a run before; prefixes that are shared on purpose stay.",
            "min": 0,
        },
    )
    timeout_s: float = dataclasses.field(
        default=600.0,
        metadata={"help": "Seconds after which a request counts as timed out.", "min": 0.001, "option": "timeout"},
    )
    keep_alive: bool = dataclasses.field(
        default=False, metadata={"help": "Reuse connections; else each request opens its own, as separate users do."}
    )
    max_send_lag: float = dataclasses.field(
        default=0.1,
        metadata={
            "help": "The run is invalid where requests leave later than planned, at p99, by more than this share of "
            "the tightest TTFT target.",
            "min": 0.0,
        },
    )
    json_path: str | None = dataclasses.field(
        default=None,
        metadata={"help": "Write the result as JSON to this file; - is stdout, the table then is on stderr."},
    )
    json_format: Literal["headrace", "vllm"] = dataclasses.field(
        default="headrace",
        metadata={"help": "Form of --json: ours, or the keys of vLLM's bench serve.", "option": "format"},
    )
    html_path: str | None = dataclasses.field(
        default=None, metadata={"help": "Write the result as one HTML file with plots."}
    )
    requests_path: str | None = dataclasses.field(
        default=None,
        metadata={
            "help": "Write a line of JSON to this file as each request ends, so that nothing is lost.",
            "option": "requests-path",
        },
    )
    scrape: bool = dataclasses.field(
        default=True,
        metadata={"help": "Read the server's /metrics before and after, and show its counts beside ours."},
    )
    save_requests: bool = dataclasses.field(
        default=False, metadata={"help": "Put every request with all its timestamps into the JSON."}
    )
    progress: bool = dataclasses.field(
        default=True, metadata={"help": "Show the run as it goes where stderr is a terminal."}
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            low, high = field.metadata.get("min"), field.metadata.get("max")
            value = getattr(self, field.name)
            name = field.metadata.get("option", field.name)
            if low is not None and value is not None and not value >= low:
                raise ValueError(f"{name} is {value}, it must be at least {low}")
            if high is not None and value is not None and not value <= high:
                raise ValueError(f"{name} is {value}, it must be at most {high}")
        if self.rate is not None and self.concurrency is not None:
            raise ValueError(
                f"rate ({self.rate}) and concurrency ({self.concurrency}) exclude each other: "
                "an open loop sends on schedule, a closed one when an answer is there"
            )
        path = next((path for path in _ENDPOINTS if self.url.rstrip("/").endswith(path)), None)
        if path is not None:
            given = self.url.rstrip("/").removesuffix(path)
            raise ValueError(f"the URL ends in {path}: give the server's own, {given}, and the endpoint with api")
        key = self.api_key
        if key is not None and not (key.strip() and key.isascii() and key.isprintable()):
            what = "holds characters that no header may have" if key.strip() else "is empty"
            raise ValueError(f"api-key {what}: is its variable right? Leave it out for a server without keys")
        if self.arrivals == "trace" and self.trace_path is None:
            raise ValueError("arrivals is 'trace' but there is no trace: give one with --trace")
        if self.duration_s is not None and self.warm_up_s + self.cool_down_s >= self.duration_s:
            raise ValueError(
                f"--warm-up ({self.warm_up_s:g} s) and --cool-down ({self.cool_down_s:g} s) leave nothing of "
                f"--duration ({self.duration_s:g} s) to count: lengthen it, or shorten these"
            )

    @property
    def is_open_loop(self) -> bool:
        return self.concurrency is None

    @property
    def arrival_kind(self) -> Literal["poisson", "constant", "gamma", "trace"]:
        """Of the open loop."""
        if self.arrivals is not None:
            return self.arrivals
        if self.trace_path is not None:
            return "trace"
        return "poisson" if self.burstiness == 1.0 else "gamma"

    @property
    def rate_per_s(self) -> float:
        """Of the open loop; with a trace's own times only where `rate` is given."""
        return 1.0 if self.rate is None else self.rate

    @property
    def max_requests(self) -> int | None:
        """None: bounded by the duration or the trace alone."""
        is_bounded = self.duration_s is not None or self.trace_path is not None
        return 100 if self.requests is None and not is_bounded else self.requests
