"""The records that cross the process boundary: msgpack over ZeroMQ, nothing pickled.

Server to engine: `AddGroup`, `AbortChoices`, `Stop`. Engine to server: `Progress`, `Ready`, `StepOutputs`, `Fatal`.
Every record is a frozen msgspec struct with a tag; `encode` and `decode_*` are the only ways in and out.
Times are seconds on CLOCK_MONOTONIC, which both processes of one machine share. The records that come by the thousand
are not tracked by the garbage collector: they hold no cycle.
"""

from __future__ import annotations

import msgspec

from engine.sampling_params import SamplingParams


class SLORequest(msgspec.Struct, frozen=True, kw_only=True):
    """`scheduler.slo.SLO` on the wire."""

    requested: str
    granted: str
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_deadline_s: float | None = None
    may_degrade: bool = False


class AddGroup(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One HTTP request: `len(prompts) * n` choices; choice i has prompt i // n."""

    group_id: str
    prompts: tuple[tuple[int, ...], ...]
    n: int
    sampling: SamplingParams
    slo: SLORequest
    arrival_s: float
    cache_salt: str = ""
    tenant: str = ""
    retention: int = 1
    """As `scheduler.request.RequestSpec`."""


class AbortChoices(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Idempotent and legal in every state; unknown ids are ignored."""

    group_id: str
    choices: tuple[int, ...] | None = None
    """None: the whole group."""
    kept_tokens: dict[int, int] = {}
    """Output tokens of a choice that the server used; absent: none. The rest count as wasted."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End the process after the step in flight."""


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Where the start-up stands; shown on the terminal and at /readyz."""

    phase: str
    fraction: float


class ClassFloorStats(msgspec.Struct, frozen=True, kw_only=True):
    """What the plan in force can promise a latency class."""

    name: str
    is_open: bool
    is_best_effort: bool
    floor_ttft_s: float
    """The fastest that this memory allows."""
    floor_tpot_s: float
    max_streamed_layers: int | None
    """The most at which its targets are met; None: they are not."""


class LinkDirectionStats(msgspec.Struct, frozen=True, kw_only=True):
    """One direction of the link; dictionaries by class of transfer, since it was opened."""

    p50_bytes_per_s: float
    p5_bytes_per_s: float
    is_derated: bool
    num_drops: int
    num_bytes: dict[str, int]
    busy_s: dict[str, float]
    num_late_slices: dict[str, int]
    num_failed: dict[str, int]


class OffloadStats(msgspec.Struct, frozen=True, kw_only=True):
    """Streamed weights: gauges of now and totals since the engine started."""

    num_layers: int
    num_streamed_layers: int
    num_slots: int
    num_steps: int
    num_weight_bytes: int
    """Of the loads that steps used."""
    num_loads: int
    hidden_s: float
    """Copying under computation."""
    exposed_s: float
    """Computation waiting for copies."""
    compute_s: float
    """Steps, the waiting apart."""
    quiet_compute_s: float
    """What the record says that they compute while nothing is copied; the quotient shows what copies cost them."""
    num_raised: int
    """Layers that went to the host."""
    num_lowered: int
    """Layers that came back."""
    num_replans: int
    h2d: LinkDirectionStats
    d2h: LinkDirectionStats
    ledger: dict[str, int]
    """Device memory by owner, in bytes; adds up to the cap."""
    host_bytes: int
    classes: tuple[ClassFloorStats, ...]


class KVTierStats(msgspec.Struct, frozen=True, kw_only=True):
    """`scheduler.stats.TierStats` on the wire, with the bytes that moved; dictionaries as there."""

    num_host_slots: int
    num_host_used: int
    num_disk_blocks: int
    num_disk_used: int
    is_host_on: bool
    is_disk_on: bool
    is_disk_writable: bool
    hit_tokens: dict[str, int]
    num_evictions: dict[str, int]
    num_preemptions: dict[str, int]
    num_loads: int
    num_load_tokens: int
    num_recompute_choices: int
    num_failed_loads: int
    num_transfers: dict[str, dict[str, int]]
    block_bytes: int = 0
    """Of one block in all layers."""
    num_bytes: dict[str, int] = {}
    """Moved, by kind of transfer."""
    busy_s: dict[str, float] = {}
    """Time that the link or the disk took for them, by kind of transfer."""
    num_verified_blocks: int = 0
    """Whose checksum was compared."""
    disk_read_bytes_per_s: float = 0.0
    """Measured; 0.0: nothing was read yet."""
    disk_write_bytes_per_s: float = 0.0


class AloneStats(msgspec.Struct, frozen=True, kw_only=True):
    """Expected of one request with nothing beside it."""

    prompt_tokens: int
    ttft_s: float
    tpot_s: float


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Weights are loaded and a real token was made."""

    max_model_len: int
    model_max_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    block_size: int
    num_blocks: int
    dtype: str
    device: str
    weights_bytes: int
    kv_cache_bytes: int
    threads: int
    load_s: float
    weights_bytes_by_format: dict[str, int] = {}
    """Of the matrices, by the name of their format: "Q4_1", "bfloat16", ..."""
    offload: OffloadStats | None = None
    """None where nothing is ever streamed."""
    kv_tiers: KVTierStats | None = None
    """None: KV blocks are on the device alone."""
    step_s_by_threads: dict[int, float] = {}
    """What the probe of threads measured; empty: their number was given."""
    longest_step_s: float = 0.0
    """Estimate of a step of `max_num_batched_tokens`, from the warm-up; bounds how long silence may be work."""
    promise_margin: float | None = None
    """Share of the time that promises leave unused at the start; None: none are made, the queues' caps alone decide."""
    alone: AloneStats | None = None
    """None: steps are not predicted, or weights are streamed, for which `offload` has the floors."""

    @property
    def admission(self) -> str:
        """The one in force, which is not always the one that was asked for."""
        return "caps" if self.promise_margin is None else "promise"


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probability of a chosen (or given) token and of the top ones, before temperature and truncation."""

    token_id: int
    logprob: float
    """Floored at -9999.0; never NaN or infinite."""
    top_token_ids: tuple[int, ...]
    """Most probable first; may or may not contain `token_id`."""
    top_logprobs: tuple[float, ...]


class ChoiceDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """New tokens of one choice."""

    group_id: str
    choice: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    """One per entry of `token_ids` where asked for, else empty."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """The next prompt positions in order, from position 1 on; arrives as the prompt is computed."""
    finish_reason: str | None = None
    """stop | length | abort | error"""
    stop_token_id: int | None = None
    """The stop token that ended it; it is the last entry of `token_ids`."""


class GroupAdmitted(msgspec.Struct, frozen=True, kw_only=True):
    """The first choice of the group started: headers may be sent.

    Sent again, with the sum so far, when a further prompt of the group starts.
    """

    group_id: str
    granted: str
    num_cached_tokens: int
    """Prompt tokens found in the prefix cache, over all prompts of the group known so far, in all tiers..."""
    num_host_cached_tokens: int = 0
    """... of them those that are loaded from the host..."""
    num_disk_cached_tokens: int = 0
    """... and those that came from the disk."""
    ttft_target_s: float
    tpot_target_s: float
    is_best_effort: bool = False
    """The targets cannot be met by the plan in force."""


class GroupRefused(msgspec.Struct, frozen=True, kw_only=True):
    """The group never started and is gone: a refusal on arrival or an expiry in the queue."""

    group_id: str
    reason: str
    """`scheduler.output.RefusalReason` value."""
    message: str
    retry_after_s: float | None = None


class StepStats(msgspec.Struct, frozen=True, kw_only=True):
    """Gauges after a step and counters since the engine started."""

    step_id: int
    step_s: float
    overhead_s: float
    """Of it, the engine's own Python: schedule, update and messages."""
    predicted_s: float | None
    budget_s: float | None = None
    """Time that prefill may fill; None: bounded by tokens alone."""
    reasons: tuple[str, ...] = ()
    """Why something was not scheduled, as in `scheduler.output.SchedulerOutput`."""
    num_running: int
    num_waiting: int
    num_waiting_by_class: dict[str, int]
    num_blocks_used: int
    num_blocks: int
    num_cached_blocks: int
    """Free blocks that still hold a prefix."""
    prompt_tokens_computed: int
    prompt_tokens_cached: int
    recomputed_tokens: int
    """Computed again after a preemption."""
    generation_tokens: int
    wasted_tokens: int
    """Sampled and dropped: past a stop string, or of an aborted choice."""
    num_preemptions: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    """Both in tokens."""
    promise_margin: float | None = None
    """Share of the time that promises leave unused; None: none are made."""
    num_promises_kept: int = 0
    num_promises_broken: int = 0
    """Both on the scheduler's own clock."""
    offload: OffloadStats | None = None
    """None where nothing is ever streamed."""
    kv_tiers: KVTierStats | None = None
    """None: KV blocks are on the device alone."""


class StepOutputs(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Everything one turn of the loop has to say. Sent each step, also with no delta: it is the heartbeat."""

    admitted: tuple[GroupAdmitted, ...] = ()
    refused: tuple[GroupRefused, ...] = ()
    deltas: tuple[ChoiceDelta, ...] = ()
    stats: StepStats


class Fatal(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The engine cannot start or go on; it exits after this."""

    message: str


ToEngine = AddGroup | AbortChoices | Stop
ToServer = Progress | Ready | StepOutputs | Fatal

_ENCODER = msgspec.msgpack.Encoder()
_TO_ENGINE = msgspec.msgpack.Decoder(ToEngine)
_TO_SERVER = msgspec.msgpack.Decoder(ToServer)


def encode(message: ToEngine | ToServer) -> bytes:
    """The msgpack form of a message."""
    return _ENCODER.encode(message)


def decode_to_engine(data: bytes) -> ToEngine:
    """Raises msgspec.ValidationError or msgspec.DecodeError: not one of the messages."""
    return _TO_ENGINE.decode(data)


def decode_to_server(data: bytes) -> ToServer:
    """Raises msgspec.ValidationError or msgspec.DecodeError: not one of the messages."""
    return _TO_SERVER.decode(data)
