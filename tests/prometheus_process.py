"""A real Prometheus with our configuration and rules, faster and on one server of this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml

from tests.deploy_files import DEPLOY, ROOT

INTERVAL = "1s"
_JOB = "headrace"


def configure(target: str) -> dict[str, Any]:
    """deploy/prometheus/prometheus.yml with only the job of our servers, pointed at `target` (host:port)."""
    config: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL}
    config["rule_files"] = [str(DEPLOY / "prometheus" / path) for path in config["rule_files"]]
    (job,) = [job for job in config["scrape_configs"] if job["job_name"] == _JOB]
    job["static_configs"] = [{"targets": [target]}]
    config["scrape_configs"] = [job]
    return config


class PrometheusProcess:
    """A context manager that ends it."""

    def __init__(self, program: str, folder: Path, target: str, port: int) -> None:
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configure(target)))
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10.0)
        self._log_path = folder / "log"
        with self._log_path.open("w") as log:
            self._process = subprocess.Popen(
                [
                    program,
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._http.close()

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Samples of an expression now; none as long as it does not answer yet."""
        data = self._get("/api/v1/query", query=expr)
        samples: list[dict[str, Any]] = [] if data is None else data["result"]
        return samples

    def rules(self) -> list[dict[str, Any]]:
        """Every rule as it stands, with `health` and `lastError`."""
        data = self._get("/api/v1/rules")
        return [] if data is None else [rule for group in data["groups"] for rule in group["rules"]]

    def _get(self, path: str, **parameters: str) -> Any:
        """None: it does not answer yet."""
        assert self._process.poll() is None, f"prometheus ended:\n{self._log_path.read_text()}"
        try:
            answer = self._http.get(path, params=parameters)
        except httpx.TransportError:
            return None
        if answer.status_code == 503:  # it starts
            return None
        body = answer.json()
        assert body["status"] == "success", f"{path} {parameters}: {body}"
        return body["data"]
