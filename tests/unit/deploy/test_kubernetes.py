"""deploy/kubernetes as kustomize renders it: valid, probed, drained at the end, with volumes and an autoscaler."""

from __future__ import annotations

import copy
import functools
import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.crd_schemas import CRD_SCHEMAS
from tests.deploy_files import DEPLOY, check_variables, find_prometheus, find_tool, run_tool
from tests.promql import read_selectors

OVERLAYS = DEPLOY / "kubernetes" / "overlays"
SERVERS = ("cpu", "gpu")


@functools.cache
def _rendered(overlay: str) -> str:
    done = run_tool(find_tool("kubectl", "kustomize is a part of it"), "kustomize", OVERLAYS / overlay)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _resources(overlay: str) -> dict[tuple[str, str], dict[str, Any]]:
    """By kind and name; the names of ConfigMaps without the hash of what they hold."""
    found = {}
    for resource in yaml.safe_load_all(_rendered(overlay)):
        name = resource["metadata"]["name"]
        found[resource["kind"], "headrace-options" if name.startswith("headrace-options-") else name] = resource
    return found


def _pod(overlay: str) -> dict[str, Any]:
    spec: dict[str, Any] = _resources(overlay)["StatefulSet", "headrace"]["spec"]["template"]["spec"]
    return spec


def _container(overlay: str) -> dict[str, Any]:
    (container,) = _pod(overlay)["containers"]
    return dict(container)


@pytest.mark.parametrize("overlay", [*SERVERS, "monitoring"])
def test_the_schemas_of_kubernetes_hold(overlay: str, tmp_path: Path) -> None:
    pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    command = (sys.executable, "-m", "kubernetes_validate", "--strict", "--no-warn")
    path = tmp_path / f"{overlay}.yaml"
    path.write_text(_rendered(overlay))
    done = run_tool(*command, path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_misspelt_key_is_found(tmp_path: Path) -> None:
    pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    path = tmp_path / "wrong.yaml"
    path.write_text(_rendered("cpu").replace("readinessProbe", "readinesProbe"))
    assert run_tool(sys.executable, "-m", "kubernetes_validate", "--strict", path).returncode != 0


def test_custom_resources_have_only_keys_that_they_know() -> None:
    custom = {kind: r for (kind, _), r in _resources("monitoring").items() if kind in CRD_SCHEMAS}
    assert set(custom) == set(CRD_SCHEMAS)
    for kind, resource in custom.items():
        jsonschema.validate(resource, CRD_SCHEMAS[kind])
        wrong = copy.deepcopy(resource)
        wrong["spec"]["interval"] = "15s"
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, CRD_SCHEMAS[kind])


def test_promtool_reads_the_operators_rules(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(_resources("monitoring")["PrometheusRule", "headrace"]["spec"]))
    done = run_tool(find_prometheus("promtool"), "check", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("overlay", SERVERS)
def test_probes_ask_the_health_routes_and_a_start_may_take_its_time(overlay: str) -> None:
    container = _container(overlay)
    paths = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert paths == {"startupProbe": "/readyz", "readinessProbe": "/readyz", "livenessProbe": "/livez"}
    (port,) = container["ports"]
    assert {container[name]["httpGet"]["port"] for name in paths} == {port["name"]}
    startup, liveness = container["startupProbe"], container["livenessProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600
    assert liveness["periodSeconds"] * liveness["failureThreshold"] > 30, "slower than readiness"


@pytest.mark.parametrize("overlay", SERVERS)
def test_a_pod_ends_after_it_has_drained(overlay: str) -> None:
    options = _resources(overlay)["ConfigMap", "headrace-options"]["data"]
    pause_s = _container(overlay)["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace_s = _pod(overlay)["terminationGracePeriodSeconds"]
    assert grace_s >= pause_s + float(options["HEADRACE_DRAIN_TIMEOUT_S"]) + 10
    readiness = _container(overlay)["readinessProbe"]
    assert pause_s >= readiness["periodSeconds"], "or a proxy sends requests to a server that takes none"


@pytest.mark.parametrize("overlay", SERVERS)
def test_a_pod_has_no_rights_that_it_does_not_need(overlay: str) -> None:
    pod, container = _pod(overlay), _container(overlay)
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["runAsGroup"] == 0 and pod["securityContext"]["seccompProfile"]
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}
    }  # fmt: skip


@pytest.mark.parametrize("overlay", SERVERS)
def test_options_are_options_and_nothing_sets_them_unasked(overlay: str) -> None:
    """A Service called headrace would set HEADRACE_PORT in each of its namespace's pods."""
    options = _resources(overlay)["ConfigMap", "headrace-options"]["data"]
    settings = check_variables(options)
    assert _pod(overlay)["enableServiceLinks"] is False
    mounts = {mount["name"]: mount["mountPath"] for mount in _container(overlay)["volumeMounts"]}
    assert settings.value("disk-path").startswith(mounts["cache"] + "/")
    (claim,) = _resources(overlay)["StatefulSet", "headrace"]["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "cache" and claim["spec"]["accessModes"] == ["ReadWriteOnce"]


def test_only_the_gpu_overlay_asks_for_one() -> None:
    for overlay, number in (("cpu", None), ("gpu", "1")):
        resources = _container(overlay)["resources"]
        assert resources["limits"].get("nvidia.com/gpu") == resources["requests"].get("nvidia.com/gpu") == number
    assert _container("cpu")["image"] == "headrace:0.1.0-cpu" and _container("gpu")["image"] == "headrace:0.1.0-cuda"


@pytest.mark.parametrize("overlay", SERVERS)
def test_what_selects_pods_selects_these(overlay: str) -> None:
    resources = _resources(overlay)
    labels = resources["StatefulSet", "headrace"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        resources["StatefulSet", "headrace"]["spec"]["selector"]["matchLabels"],
        resources["Service", "headrace"]["spec"]["selector"],
        resources["Service", "headrace-pods"]["spec"]["selector"],
        resources["PodDisruptionBudget", "headrace"]["spec"]["selector"]["matchLabels"],
        _resources("monitoring")["PodMonitor", "headrace"]["spec"]["selector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector and selector.items() <= labels.items()
    assert resources["StatefulSet", "headrace"]["spec"]["serviceName"] == "headrace-pods"


@pytest.mark.parametrize("overlay", [*SERVERS, "monitoring"])
def test_what_apply_keeps_in_an_annotation_fits_it(overlay: str) -> None:
    for key, resource in _resources(overlay).items():
        assert len(json.dumps(resource)) < 200_000, f"{key}: Kubernetes takes 262,144 bytes of annotations"


def test_grafanas_sidecar_finds_the_dashboards() -> None:
    maps = [resource for (kind, _), resource in _resources("monitoring").items() if kind == "ConfigMap"]
    assert len(maps) == 3
    for each in maps:
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        (text,) = each["data"].values()
        assert json.loads(text)["uid"].startswith("headrace-")


def test_the_autoscaler_reads_what_is_recorded_under_the_jobs_name() -> None:
    resources = _resources("monitoring")
    monitor = resources["PodMonitor", "headrace"]["metadata"]
    job = f"{monitor['namespace']}/{monitor['name']}"
    scaled = resources["ScaledObject", "headrace"]["spec"]
    assert scaled["scaleTargetRef"]["kind"] == "StatefulSet"
    assert ("StatefulSet", scaled["scaleTargetRef"]["name"]) in _resources("cpu")
    groups = resources["PrometheusRule", "headrace"]["spec"]["groups"]
    recorded = {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}
    names = set()
    for trigger in scaled["triggers"]:
        for selector in read_selectors(trigger["metadata"]["query"]):
            assert ("job", "Equal", job) in selector.matchers
            names.add(selector.name)
    assert "headrace:slo_burn:rate5m" in names & recorded
    assert {name for name in names if ":" in name} <= recorded
