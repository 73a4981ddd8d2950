"""The board of the engine: how full it is, what a step takes, what was expected of it, and what bounds it."""

from __future__ import annotations

from panels import INSTANCES, Dashboard, Panel, Query, Row, quantile, rate

STEPS = rate("headrace_step_seconds_count", INSTANCES)
COMPUTED = f'{INSTANCES}, source=~"compute|recompute"'
STEP_S = rate("headrace_step_seconds_sum", INSTANCES)


def _quantiles(name: str, legend: str) -> tuple[Query, ...]:
    return tuple(Query(quantile(q, name, INSTANCES), f"{legend} p{q * 100:g}") for q in (0.5, 0.99))


STATE = Row(
    "State",
    (
        Panel(
            "Engine",
            "1: it serves; 0: it starts or is dead.",
            "none",
            (Query(f"headrace_engine_ready{{{INSTANCES}}}", "{{instance}}"),),
            kind="stat",
            width=8,
            height=4,
            steps=((None, "red"), (1.0, "green")),
            mappings=(("0", "not ready", "red"), ("1", "ready", "green")),
        ),
        Panel(
            "Restarts in 24 hours",
            "Starts of the engine after the first. Each one fails the requests that run.",
            "none",
            (Query(f"sum(increase(headrace_engine_restarts_total{{{INSTANCES}}}[1d]))", "restarts"),),
            kind="stat",
            width=4,
            height=4,
            steps=((None, "green"), (1.0, "orange"), (3.0, "red")),
        ),
        Panel(
            "Compute threads",
            "Threads that compute a step.",
            "none",
            (Query(f"headrace_engine_compute_threads{{{INSTANCES}}}", "{{instance}}"),),
            kind="stat",
            width=4,
            height=4,
        ),
        Panel(
            "Admission margin",
            "Share of the time that promises leave unused; it grows where promises are broken. Empty: no promises are "
            "made.",
            "percentunit",
            (Query(f"headrace_admission_margin{{{INSTANCES}}}", "{{instance}}"),),
            kind="stat",
            width=4,
            height=4,
        ),
        Panel(
            "KV blocks held",
            "Share of the KV blocks that requests hold.",
            "percentunit",
            (Query(f"max(headrace_kv_cache_usage_ratio{{{INSTANCES}}})", "held"),),
            kind="stat",
            width=4,
            height=4,
            high=1.0,
            steps=((None, "green"), (0.9, "orange")),
        ),
    ),
)
BATCH = Row(
    "Batch and tokens",
    (
        Panel(
            "Running and waiting",
            "Choices that hold KV blocks, and those that wait.",
            "none",
            (
                Query(f"sum(headrace_requests_running{{{INSTANCES}}})", "running"),
                Query(f"sum(headrace_requests_waiting{{{INSTANCES}}})", "waiting"),
            ),
        ),
        Panel(
            "Tokens a step",
            "Mean: tokens sampled, and prompt tokens computed.",
            "none",
            (
                Query(f"{rate('headrace_generation_tokens_total', INSTANCES)} / ({STEPS} > 0)", "sampled"),
                Query(
                    f"{rate('headrace_prompt_tokens_total', COMPUTED)} / ({STEPS} > 0)",
                    "of prompts",
                ),
            ),
        ),
        Panel(
            "Tokens sampled",
            "A second; wasted: past a stop string, or of a choice whose client had left.",
            "none",
            (
                Query(rate("headrace_generation_tokens_total", INSTANCES), "sampled"),
                Query(rate("headrace_wasted_tokens_total", INSTANCES), "wasted"),
            ),
        ),
        Panel(
            "Prompt tokens by source",
            "Computed, found in a tier, or computed once more after a preemption, a second.",
            "none",
            (Query(rate("headrace_prompt_tokens_total", INSTANCES, "source"), "{{source}}"),),
            stacked=True,
        ),
        Panel(
            "KV blocks",
            "Held by requests, kept for their prefixes, and in all.",
            "none",
            (Query(f"sum by (state) (headrace_kv_cache_blocks{{{INSTANCES}}})", "{{state}}"),),
        ),
        Panel(
            "Prefix cache",
            "Share of the prompt tokens looked up that were found.",
            "percentunit",
            (
                Query(
                    f"{rate('headrace_prefix_cache_hits_tokens_total', INSTANCES)}"
                    f" / ({rate('headrace_prefix_cache_queries_tokens_total', INSTANCES)} > 0)",
                    "found",
                ),
            ),
            high=1.0,
        ),
    ),
)
TIME = Row(
    "Steps: predicted and measured",
    (
        Panel(
            "Duration of a step",
            "Measured.",
            "s",
            _quantiles("headrace_step_seconds", "measured"),
        ),
        Panel(
            "Mean step, predicted and measured",
            "The same steps where all are predicted. Promises and chunks follow the prediction.",
            "s",
            (
                Query(f"{STEP_S} / ({STEPS} > 0)", "measured"),
                Query(
                    f"{rate('headrace_predicted_step_seconds_sum', INSTANCES)}"
                    f" / ({rate('headrace_predicted_step_seconds_count', INSTANCES)} > 0)",
                    "predicted",
                ),
            ),
        ),
        Panel(
            "Error of the prediction",
            "|predicted - measured| / measured.",
            "percentunit",
            _quantiles("headrace_step_prediction_error_ratio", "error"),
        ),
        Panel(
            "Time that a step may take",
            "Until the tightest deadline: what prefill beside decodes may fill.",
            "s",
            _quantiles("headrace_step_budget_seconds", "budget"),
        ),
        Panel(
            "What was left out of steps",
            "Steps a second that left something out, by why.",
            "ops",
            (Query(rate("headrace_steps_limited_total", INSTANCES, "reason"), "{{reason}}"),),
        ),
        Panel(
            "Steps and the engine's own time",
            "Share of the time in steps, and in the engine's own Python: schedule, update and messages.",
            "percentunit",
            (
                Query(STEP_S, "in steps"),
                Query(rate("headrace_engine_overhead_seconds_sum", INSTANCES), "own Python"),
            ),
        ),
    ),
)
TROUBLE = Row(
    "Preemptions, promises and the HTTP process",
    (
        Panel(
            "Preemptions",
            "Requests a second that lost their blocks to another one, by what brings these back.",
            "ops",
            (Query(rate("headrace_preemptions_total", INSTANCES, "restore"), "{{restore}}"),),
            stacked=True,
        ),
        Panel(
            "Promises on the scheduler's clock",
            "A second, by whether they were kept: what the admission margin follows.",
            "ops",
            (Query(rate("headrace_scheduler_promises_total", INSTANCES, "kept"), "kept {{kept}}"),),
        ),
        Panel(
            "Lag of the event loop",
            "How late the HTTP process runs a timer.",
            "s",
            (
                *_quantiles("headrace_event_loop_lag_seconds", "lag"),
                Query(f"max(headrace_event_loop_lag_max_seconds{{{INSTANCES}}})", "largest since the start"),
            ),
        ),
        Panel(
            "Lost lines of the request log",
            "Lines a second that could not be written.",
            "ops",
            (Query(rate("headrace_request_log_lost_lines_total", INSTANCES), "lost"),),
            width=24,
            height=5,
        ),
    ),
)
ENGINE_BOARD = Dashboard(
    "headrace-engine",
    "Headrace: engine",
    "Batch, KV cache, and steps as predicted and as measured.",
    (STATE, BATCH, TIME, TROUBLE),
    has_classes=False,
)
