"""The board of classes and objectives: is each class served as promised, what is missed, and why."""

from __future__ import annotations

from panels import CLASSES, INSTANCES, RECORDED, Dashboard, Panel, Query, Row, quantile, rate

CLASS = "{{slo_class}}"
BUDGET_STEPS = ((None, "red"), (0.0, "orange"), (0.25, "green"))
TARGET = f"max by (slo_class) (headrace_slo_target_seconds{{{CLASSES}, slo="
KEPT = f'{CLASSES}, kept="true"'
FINISHED = f'{CLASSES}, outcome!="cancelled"'


def _recorded(name: str) -> str:
    return f"headrace:{name}{{{RECORDED}}}"


def _latency(title: str, text: str, name: str, target: str) -> Panel:
    return Panel(
        title,
        text,
        "s",
        (
            Query(quantile(0.5, name, CLASSES, "slo_class"), f"{CLASS} p50"),
            Query(quantile(0.99, name, CLASSES, "slo_class"), f"{CLASS} p99"),
            Query(f'{TARGET}"{target}"}})', f"{CLASS} target", is_target=True),
        ),
    )


NOW = Row(
    "Now",
    (
        Panel(
            "Classes and objectives",
            "Share of finished requests that met their targets, beside the share that should. Refused, expired and "
            "failed requests count as missed; a client that left in time does not count. Budget: what is left of the "
            "misses that the objective allows in 30 days. Burn 1: exactly the allowed misses.",
            "percentunit",
            (
                Query(_recorded("slo_objective:ratio"), "objective"),
                Query(_recorded("slo_attainment:ratio_rate5m"), "now (5 m)"),
                Query(_recorded("slo_attainment:ratio_rate1h"), "1 h"),
                Query(_recorded("slo_attainment:ratio_rate30d"), "30 d"),
                Query(_recorded("slo_budget_left:ratio_30d"), "budget left"),
            ),
            kind="table",
            width=14,
            height=7,
            low=None,
        ),
        Panel(
            "Budget left of 30 days",
            "1: nothing was missed. 0: as much as the objective allows. Below: the objective is broken.",
            "percentunit",
            (Query(_recorded("slo_budget_left:ratio_30d"), CLASS),),
            kind="bargauge",
            width=6,
            height=7,
            low=-1.0,
            high=1.0,
            steps=BUDGET_STEPS,
        ),
        Panel(
            "Servers ready",
            "Engines that serve now; a server without one answers 503.",
            "none",
            (Query(f"sum(headrace_engine_ready{{{INSTANCES}}})", "ready"),),
            kind="stat",
            width=4,
            height=7,
            steps=((None, "red"), (1.0, "green")),
        ),
    ),
)
ATTAINMENT = Row(
    "Attainment and budget",
    (
        Panel(
            "Attainment of 5 minutes",
            "Met / finished. The dashed line is the class's objective. Nothing is drawn without traffic.",
            "percentunit",
            (
                Query(_recorded("slo_attainment:ratio_rate5m"), CLASS),
                Query(_recorded("slo_objective:ratio"), f"{CLASS} objective", is_target=True),
            ),
            high=1.0,
        ),
        Panel(
            "Attainment of 1 hour and of 30 days",
            "The same over longer windows: what the budget is counted by.",
            "percentunit",
            (
                Query(_recorded("slo_attainment:ratio_rate1h"), f"{CLASS} 1 h"),
                Query(_recorded("slo_attainment:ratio_rate30d"), f"{CLASS} 30 d"),
            ),
            high=1.0,
        ),
        Panel(
            "Burn rate",
            "Misses as a multiple of those that the objective allows: at 1 the budget of 30 days lasts 30 days.",
            "none",
            (
                Query(_recorded("slo_burn:rate5m"), f"{CLASS} 5 m"),
                Query(_recorded("slo_burn:rate1h"), f"{CLASS} 1 h"),
                Query(_recorded("slo_burn:rate6h"), f"{CLASS} 6 h"),
                Query(_recorded("slo_burn:rate3d"), f"{CLASS} 3 d"),
            ),
        ),
        Panel(
            "Misses and the page of 1 hour",
            "Share missed in the last hour. Dashed: the class's limit for the alert HeadraceBudgetBurnsIn1h: "
            "14.4 times the allowed misses, at most all.",
            "percentunit",
            (
                Query(_recorded("slo_bad:ratio_rate1h"), CLASS),
                Query(_recorded("slo_bad_limit:ratio_rate1h"), f"{CLASS} limit", is_target=True),
            ),
            high=1.0,
        ),
        Panel(
            "Budget left over time",
            "Of the misses that the objective allows in 30 days.",
            "percentunit",
            (Query(_recorded("slo_budget_left:ratio_30d"), CLASS),),
            low=None,
            high=1.0,
        ),
        Panel(
            "Promises kept",
            "Of admitted requests, by the class they were granted: targets told before the first byte that were kept.",
            "percentunit",
            (
                Query(
                    f"{rate('headrace_promises_total', KEPT, 'slo_class')}"
                    f" / ({rate('headrace_promises_total', CLASSES, 'slo_class')} > 0)",
                    CLASS,
                ),
            ),
            high=1.0,
        ),
    ),
)
MISSES = Row(
    "Who misses what",
    (
        Panel(
            "Misses by class and target",
            "Requests a second that ended otherwise than met. Of several misses the first that a user notices counts.",
            "reqps",
            (
                Query(
                    rate("headrace_requests_slo_total", f'{CLASSES}, outcome!~"met|cancelled"', "slo_class, outcome"),
                    "{{slo_class}} {{outcome}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Outcomes as shares",
            "Of all finished requests of the class; clients that left are left out.",
            "percentunit",
            (
                Query(
                    f"{rate('headrace_requests_slo_total', FINISHED, 'slo_class, outcome')} / on (slo_class)"
                    f" group_left () ({rate('headrace_requests_slo_total', FINISHED, 'slo_class')} > 0)",
                    "{{slo_class}} {{outcome}}",
                ),
            ),
            high=1.0,
        ),
        Panel(
            "Clients that left",
            "Requests a second whose client went away before anything was late.",
            "reqps",
            (Query(rate("headrace_requests_slo_total", f'{CLASSES}, outcome="cancelled"', "slo_class"), CLASS),),
        ),
        _latency(
            "Time to first token",
            "From the body read to the first token handed to the socket. The target of a request also grows with its "
            "uncached prompt tokens; dashed is its base.",
            "headrace_ttft_seconds",
            "ttft_base",
        ),
        _latency("Time per token", "Of completed requests, after the first token.", "headrace_tpot_seconds", "tpot"),
        _latency(
            "Longest gaps",
            "Gap before each token after the first, beside the longest that meets the target.",
            "headrace_inter_token_seconds",
            "max_stall",
        ),
    ),
)
GOODPUT = Row(
    "Goodput and throughput",
    (
        Panel(
            "Requests",
            "Offered, finished, and met: goodput is what the third line says.",
            "reqps",
            (
                Query(rate("headrace_requests_offered_total", CLASSES), "offered"),
                Query(rate("headrace_requests_slo_total", CLASSES), "finished"),
                Query(rate("headrace_requests_slo_total", f'{CLASSES}, outcome="met"'), "met"),
            ),
        ),
        Panel(
            "Goodput by class",
            "Requests a second that met their targets.",
            "reqps",
            (Query(rate("headrace_requests_slo_total", f'{CLASSES}, outcome="met"', "slo_class"), CLASS),),
            stacked=True,
        ),
        Panel(
            "Tokens",
            "Sampled, handed over in finished requests, and handed over in requests that met their targets.",
            "none",
            (
                Query(rate("headrace_generation_tokens_total", INSTANCES), "sampled a second"),
                Query(rate("headrace_requests_slo_tokens_total", CLASSES), "handed over a second"),
                Query(rate("headrace_requests_slo_tokens_total", f'{CLASSES}, outcome="met"'), "in met requests"),
            ),
        ),
    ),
)
QUEUE = Row(
    "Queue and refusals",
    (
        Panel(
            "Waiting by class",
            "Choices that wait for their start or restart.",
            "none",
            (Query(f"sum by (slo_class) (headrace_requests_waiting{{{CLASSES}}})", CLASS),),
            stacked=True,
        ),
        Panel(
            "Time in the queue",
            "From the body read to admission.",
            "s",
            (
                Query(quantile(0.5, "headrace_queue_seconds", CLASSES, "slo_class"), f"{CLASS} p50"),
                Query(quantile(0.99, "headrace_queue_seconds", CLASSES, "slo_class"), f"{CLASS} p99"),
            ),
        ),
        Panel(
            "Refusals by reason",
            "Requests a second that were refused, or expired before they started.",
            "reqps",
            (Query(rate("headrace_requests_refused_total", CLASSES, "slo_class, reason"), "{{slo_class}} {{reason}}"),),
            stacked=True,
        ),
        Panel(
            "Open classes",
            "A class that the memory and the link cannot serve in time is closed; one that is served all the same is "
            "best effort.",
            "none",
            (
                Query(f"min by (slo_class) (headrace_class_open{{{CLASSES}}})", f"{CLASS} open"),
                Query(f"max by (slo_class) (headrace_class_best_effort{{{CLASSES}}})", f"{CLASS} best effort"),
            ),
            high=1.0,
        ),
        Panel(
            "Whole answers",
            "From the body read to the last token, of completed requests.",
            "s",
            (
                Query(quantile(0.5, "headrace_e2e_seconds", CLASSES, "slo_class"), f"{CLASS} p50"),
                Query(quantile(0.99, "headrace_e2e_seconds", CLASSES, "slo_class"), f"{CLASS} p99"),
            ),
        ),
        Panel(
            "HTTP responses",
            "By route and status; 429 and 503 are refusals, with a Retry-After where waiting helps.",
            "reqps",
            (Query(rate("headrace_http_responses_total", INSTANCES, "handler, status"), "{{handler}} {{status}}"),),
            stacked=True,
        ),
    ),
)
SLO_BOARD = Dashboard(
    "headrace-classes",
    "Headrace: classes and objectives",
    "Attainment by latency class. Windows of five minutes and more come from the "
    "recording rules in deploy/prometheus; without them those panels stay empty.",
    (NOW, ATTAINMENT, MISSES, GOODPUT, QUEUE),
    has_classes=True,
)
