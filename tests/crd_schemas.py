"""What we use of three custom resources, as JSON schemas: the cluster's definitions are not at hand in a test.

After the API references of the Prometheus operator (monitoring.coreos.com/v1) and of KEDA (keda.sh/v1alpha1). A key
that is not named here is an error, so that a misspelt one is found.
"""

from __future__ import annotations

from typing import Any

_DURATION = {"type": "string", "pattern": r"^(0|(\d+(ms|s|m|h|d))+)$"}
_STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
_COUNT = {"type": "integer", "minimum": 0}


def _closed(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "additionalProperties": False, "properties": properties}


def _many(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": item}


_METADATA = _closed(
    ("name",), name={"type": "string"}, namespace={"type": "string"}, labels=_STRINGS, annotations=_STRINGS
)
_RECORD = _closed(("record", "expr"), record={"type": "string"}, expr={"type": "string"}, labels=_STRINGS)
_ALERT = _closed(
    ("alert", "expr"),
    alert={"type": "string"},
    expr={"type": "string"},
    labels=_STRINGS,
    annotations=_STRINGS,
    **{"for": _DURATION},
)
_BEHAVIOUR = _closed(
    (),
    stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600},
    selectPolicy={"enum": ["Max", "Min", "Disabled"]},
    policies=_many(
        _closed(
            ("type", "value", "periodSeconds"),
            type={"enum": ["Pods", "Percent"]},
            value={"type": "integer", "minimum": 1},
            periodSeconds={"type": "integer", "minimum": 1, "maximum": 1800},
        )
    ),
)
_TRIGGER = _closed(
    ("type", "metadata"),
    type={"const": "prometheus"},
    name={"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
    metricType={"enum": ["AverageValue", "Value"]},
    metadata=_closed(
        ("serverAddress", "query", "threshold"),
        serverAddress={"type": "string", "pattern": "^https?://"},
        query={"type": "string"},
        threshold={"type": "string", "pattern": r"^\d+(\.\d+)?$"},
        activationThreshold={"type": "string", "pattern": r"^\d+(\.\d+)?$"},
    ),
)


def _resource(api: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return _closed(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": api}, kind={"const": kind}, metadata=_METADATA, spec=spec,
    )  # fmt: skip


CRD_SCHEMAS: dict[str, dict[str, Any]] = {
    "PodMonitor": _resource(
        "monitoring.coreos.com/v1",
        "PodMonitor",
        _closed(
            ("selector", "podMetricsEndpoints"),
            selector=_closed((), matchLabels=_STRINGS),
            podMetricsEndpoints=_many(
                _closed(("port",), port={"type": "string"}, path={"type": "string"}, interval=_DURATION)
            ),
        ),
    ),
    "PrometheusRule": _resource(
        "monitoring.coreos.com/v1",
        "PrometheusRule",
        _closed(
            ("groups",),
            groups=_many(
                _closed(
                    ("name", "rules"),
                    name={"type": "string"},
                    interval=_DURATION,
                    rules=_many({"anyOf": [_RECORD, _ALERT]}),
                )
            ),
        ),
    ),
    "ScaledObject": _resource(
        "keda.sh/v1alpha1",
        "ScaledObject",
        _closed(
            ("scaleTargetRef", "triggers"),
            scaleTargetRef=_closed(
                ("name",), apiVersion={"type": "string"}, kind={"enum": ["Deployment", "StatefulSet"]},
                name={"type": "string"},
            ),
            pollingInterval={"type": "integer", "minimum": 1},
            cooldownPeriod=_COUNT,
            minReplicaCount=_COUNT,
            maxReplicaCount={"type": "integer", "minimum": 1},
            advanced=_closed(
                (),
                horizontalPodAutoscalerConfig=_closed(
                    (), behavior=_closed((), scaleUp=_BEHAVIOUR, scaleDown=_BEHAVIOUR)
                ),
            ),
            triggers=_many(_TRIGGER),
        ),
    ),
}  # fmt: skip
