"""Who serves in a comparison over HTTP: this server by policy, started for it, or a peer that runs already."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from benchmarks.serve_and_bench import serving
from scheduler.config import PolicyName, SchedulerConfig

_POLICIES: dict[str, PolicyName] = {name: name for name in get_args(PolicyName)}


@dataclasses.dataclass(frozen=True, slots=True)
class Site:
    """What all of our servers have in common."""

    model: str
    threads: int
    """Compute threads; given to every server, so that none chooses for itself and all have one record."""
    classes_path: Path | None
    """Of a file of latency classes; None: the built-in ones."""
    results: Path
    """Where logs go."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServedPolicy:
    """This server under a policy, with or without promises."""

    policy: PolicyName
    promises: bool

    @classmethod
    def parse(cls, text: str) -> ServedPolicy:
        """`POLICY+caps` or `POLICY+promise`.

        Raises:
            ValueError: no such policy or admission.
        """
        policy, _, admission = text.partition("+")
        if policy not in _POLICIES or admission not in ("caps", "promise"):
            raise ValueError(f"{text!r}: write one of {', '.join(_POLICIES)}, and +caps or +promise")
        return cls(_POLICIES[policy], admission == "promise")

    @property
    def name(self) -> str:
        return f"{self.policy}+{'promise' if self.promises else 'caps'}"

    @property
    def model(self) -> None:
        """The first that the server lists."""
        return None

    def scheduler(self) -> SchedulerConfig:
        """What the server has in force: all else is its default."""
        return SchedulerConfig(scheduler_policy=self.policy, admission="promise" if self.promises else "caps")

    def arguments(self, site: Site) -> list[str]:
        """Of `headrace serve`."""
        config = self.scheduler()
        chosen = ["--scheduler-policy", config.scheduler_policy, "--admission", config.admission]
        classes = [] if site.classes_path is None else ["--classes", str(site.classes_path)]
        return [*chosen, "--threads", str(site.threads), *classes, "--model", site.model]

    @contextlib.contextmanager
    def serving(self, site: Site, round_index: int) -> Iterator[str]:
        """The URL, while a server of its own runs.

        Raises:
            RuntimeError: it did not start.
        """
        log = self.request_log(site, round_index)
        log.unlink(missing_ok=True)
        with serving([*self.arguments(site), "--request-log", str(log)]) as url:
            yield url

    def request_log(self, site: Site, round_index: int) -> Path:
        """Of that round: the server's own times."""
        return site.results / f"{self.name}-{round_index}.requests.jsonl"


@dataclasses.dataclass(frozen=True, slots=True)
class Peer:
    """Another server that somebody else has started."""

    name: str
    url: str
    model: str | None

    @classmethod
    def parse(cls, text: str) -> Peer:
        """`NAME=URL[,model=NAME]`.

        Raises:
            ValueError: it is of another form.
        """
        match = re.fullmatch(r"([\w.-]+)=(https?://[^,]+)(?:,model=(.+))?", text)
        if match is None:
            raise ValueError(f"{text!r}: write NAME=URL or NAME=URL,model=NAME, the URL with http://")
        return cls(match[1], match[2], match[3])

    @contextlib.contextmanager
    def serving(self, site: Site, round_index: int) -> Iterator[str]:  # noqa: ARG002 (the same for all contenders)
        """The URL; nothing is started or ended."""
        yield self.url


Contender = ServedPolicy | Peer
