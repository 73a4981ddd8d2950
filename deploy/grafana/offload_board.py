"""The board of memory and link: what is streamed, what that costs, who holds what, where prompts are found."""

from __future__ import annotations

from panels import CLASSES, INSTANCES, WINDOW, Dashboard, Panel, Query, Row, rate

LANE = "{{direction}} {{kind}}"
HIDDEN = rate("headrace_offload_hidden_seconds_total", INSTANCES)
EXPOSED = rate("headrace_offload_exposed_seconds_total", INSTANCES)
HITS = "headrace_kv_tier_hit_tokens_total"


def _by(name: str, labels: str) -> str:
    return f"sum by ({labels}) ({name}{{{INSTANCES}}})"


STREAMING = Row(
    "Streamed layers",
    (
        Panel(
            "Layers by place",
            "Decoder layers whose weights stay on the device, and those that every step copies from the host.",
            "none",
            (Query(f"sum by (place, instance) (headrace_offload_layers{{{INSTANCES}}})", "{{place}} {{instance}}"),),
        ),
        Panel(
            "Moves and new plans",
            "Layers that went to the host to make room for KV or came back, and plans made anew because the link "
            "changed, in the window.",
            "none",
            (
                Query(
                    f"sum by (to) (increase(headrace_offload_layer_moves_total{{{INSTANCES}}}[{WINDOW}]))", "to {{to}}"
                ),
                Query(f"sum(increase(headrace_offload_replans_total{{{INSTANCES}}}[{WINDOW}]))", "new plans"),
            ),
        ),
        Panel(
            "Floor and target by class",
            "The fastest token that the memory allows, beside the class's target (dashed). Above it a class is closed, "
            "or served as best effort.",
            "s",
            (
                Query(
                    f'max by (slo_class) (headrace_class_floor_seconds{{{CLASSES}, target="tpot"}})', "{{slo_class}}"
                ),
                Query(
                    f'max by (slo_class) (headrace_slo_target_seconds{{{CLASSES}, slo="tpot"}})',
                    "{{slo_class}} target",
                    is_target=True,
                ),
            ),
        ),
        Panel(
            "Hidden and exposed copies",
            "Seconds a second that weights were copied under computation, and that computation waited for them.",
            "percentunit",
            (Query(HIDDEN, "hidden"), Query(EXPOSED, "exposed")),
            stacked=True,
        ),
        Panel(
            "Share of copies that is exposed",
            "0: every copy hides under computation.",
            "percentunit",
            (Query(f"{EXPOSED} / ({HIDDEN} + {EXPOSED} > 0)", "exposed"),),
            high=1.0,
        ),
        Panel(
            "Slowdown by copying",
            "What steps took to compute, over what the record says of them while nothing is copied. 1: none.",
            "none",
            (
                Query(
                    f"{rate('headrace_offload_compute_seconds_total', INSTANCES)}"
                    f" / ({rate('headrace_offload_quiet_compute_seconds_total', INSTANCES)} > 0)",
                    "beside copies",
                ),
            ),
        ),
    ),
)
LINK = Row(
    "Link",
    (
        Panel(
            "Bytes over the link",
            "By direction (h2d: to the device) and by what was moved.",
            "Bps",
            (Query(rate("headrace_offload_bytes_total", INSTANCES, "direction, kind"), LANE),),
            stacked=True,
        ),
        Panel(
            "Link busy",
            "Share of the time that copies of each kind held the link. 1 in a direction: it is the bottleneck.",
            "percentunit",
            (Query(rate("headrace_offload_link_busy_seconds_total", INSTANCES, "direction, kind"), LANE),),
            stacked=True,
        ),
        Panel(
            "Measured bandwidth",
            "Plans follow its slow twentieth (p5).",
            "Bps",
            (
                Query(
                    f"min by (direction, quantile) (headrace_offload_link_bytes_per_second{{{INSTANCES}}})",
                    "{{direction}} {{quantile}}",
                ),
            ),
        ),
        Panel(
            "Late and failed copies",
            "Slices slower than the bandwidth in force predicted, copies that failed, and sudden drops of the "
            "bandwidth, a second.",
            "ops",
            (
                Query(rate("headrace_offload_late_slices_total", INSTANCES, "direction, kind"), f"late {LANE}"),
                Query(rate("headrace_offload_failed_copies_total", INSTANCES, "direction, kind"), f"failed {LANE}"),
                Query(rate("headrace_offload_link_drops_total", INSTANCES, "direction"), "drops {{direction}}"),
            ),
            width=12,
        ),
        Panel(
            "Copies of layers",
            "Copies of a layer's weights that steps used, a second.",
            "ops",
            (Query(rate("headrace_offload_weight_loads_total", INSTANCES), "layers"),),
            width=12,
        ),
    ),
)
LEDGER = Row(
    "Who holds the memory",
    (
        Panel(
            "Device memory by owner",
            "Adds up to --device-memory.",
            "bytes",
            (Query(_by("headrace_device_memory_bytes", "owner"), "{{owner}}"),),
            width=12,
            stacked=True,
        ),
        Panel(
            "Host memory by owner",
            "Streamed weights, and KV blocks.",
            "bytes",
            (Query(_by("headrace_host_memory_bytes", "owner"), "{{owner}}"),),
            width=12,
            stacked=True,
        ),
    ),
)
TIERS = Row(
    "KV tiers",
    (
        Panel(
            "Prompt tokens found, by tier",
            "Of the prefix cache. What is found nowhere is computed.",
            "none",
            (Query(rate(HITS, INSTANCES, "tier"), "{{tier}}"),),
            stacked=True,
        ),
        Panel(
            "Share of prompt tokens found",
            "Of those looked up, by the tier that held them.",
            "percentunit",
            (
                Query(
                    f"{rate(HITS, INSTANCES, 'tier')} / on () group_left ()"
                    f" ({rate('headrace_prefix_cache_queries_tokens_total', INSTANCES)} > 0)",
                    "{{tier}}",
                ),
            ),
            high=1.0,
            stacked=True,
        ),
        Panel(
            "Blocks and limits",
            "Blocks that a tier holds; dashed: that it may hold.",
            "none",
            (
                Query(_by("headrace_kv_tier_blocks", "tier"), "{{tier}}"),
                Query(_by("headrace_kv_tier_blocks_limit", "tier"), "{{tier}} limit", is_target=True),
            ),
        ),
        Panel(
            "Bytes between tiers",
            "By kind of transfer.",
            "Bps",
            (Query(rate("headrace_kv_transfer_bytes_total", INSTANCES, "kind"), "{{kind}}"),),
            stacked=True,
        ),
        Panel(
            "Transfers busy",
            "Share of the time that the link or the disk was busy with each kind of transfer.",
            "percentunit",
            (Query(rate("headrace_kv_transfer_busy_seconds_total", INSTANCES, "kind"), "{{kind}}"),),
            stacked=True,
        ),
        Panel(
            "Blocks moved, by how it ended",
            "A block that does not arrive is computed again, never served.",
            "ops",
            (Query(rate("headrace_kv_transfers_total", INSTANCES, "kind, outcome"), "{{kind}} {{outcome}}"),),
            stacked=True,
        ),
        Panel(
            "Evictions",
            "Blocks that left a tier to make room, a second.",
            "ops",
            (Query(rate("headrace_kv_evictions_total", INSTANCES, "tier"), "{{tier}}"),),
            stacked=True,
        ),
        Panel(
            "Loaded or computed",
            "Prefixes found in a cheaper tier, by what was faster by prediction and was done; and loads that failed.",
            "ops",
            (
                Query(rate("headrace_kv_hit_choices_total", INSTANCES, "choice"), "{{choice}}"),
                Query(rate("headrace_kv_failed_loads_total", INSTANCES), "failed"),
            ),
        ),
        Panel(
            "Tokens loaded and blocks verified",
            "Tokens whose blocks were asked for from the host, and blocks whose checksum was compared, a second.",
            "ops",
            (
                Query(rate("headrace_kv_load_tokens_total", INSTANCES), "tokens loaded"),
                Query(rate("headrace_kv_verified_blocks_total", INSTANCES), "blocks verified"),
            ),
        ),
        Panel(
            "Disk",
            "Measured speed of the disk of KV blocks; 0 where there is none.",
            "Bps",
            (Query(f"sum by (operation) (headrace_kv_disk_bytes_per_second{{{INSTANCES}}})", "{{operation}}"),),
            width=12,
        ),
        Panel(
            "Tiers in use",
            "0: there is none, or its failures turned it off for a while. Disk writable 0: full, only read.",
            "none",
            (
                Query(f"min by (tier, instance) (headrace_kv_tier_on{{{INSTANCES}}})", "{{tier}} {{instance}}"),
                Query(f"min by (instance) (headrace_kv_disk_writable{{{INSTANCES}}})", "disk writable {{instance}}"),
            ),
            width=12,
            high=1.0,
        ),
    ),
)
OFFLOAD_BOARD = Dashboard(
    "headrace-memory",
    "Headrace: memory and link",
    "Streamed weights and KV tiers. All zeros where the model and its KV cache fit and no tier is on.",
    (STREAMING, LINK, LEDGER, TIERS),
    has_classes=True,
)
