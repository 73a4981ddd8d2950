"""What a performance record is of: if one of these differs, its times are those of something else."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
from collections.abc import Iterator
from pathlib import Path

_CPU_FIELDS = {"model name", "flags", "Features", "CPU implementer", "CPU part"}
"""Of /proc/cpuinfo, on x86 and on Arm."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fingerprint:
    """Plain text and numbers, compared one by one."""

    device: str
    """Name of the processor or accelerator."""
    processor_features: str
    """Digest of what the processor says it can do."""
    driver: str
    """Of an accelerator; of a CPU, the kernel's name and machine."""
    num_cores: int
    """That this process may use."""
    num_threads: int
    """That compute."""
    model: str
    """Digest of sizes, times of change and configuration of its files."""
    dtype: str
    """Of activations, keys and values."""
    weights: str
    """What they are converted to when they are loaded; "stored": nothing."""
    kernels: str
    """Who computes: a name and a digest of the sources."""
    torch_version: str
    is_batch_invariant: bool

    @property
    def digest(self) -> str:
        """16 hexadecimal digits: equal fingerprints, equal digests."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def differences(self, other: Fingerprint) -> Iterator[tuple[str, object, object]]:
        """Name, own value and the other's of each field that differs."""
        for field in dataclasses.fields(self):
            own, others = getattr(self, field.name), getattr(other, field.name)
            if own != others:
                yield field.name, own, others


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessorIdentity:
    """What a CPU calls itself."""

    name: str
    features: str
    """16 hexadecimal digits."""


def identify_processor(cpu_info: Path = Path("/proc/cpuinfo")) -> ProcessorIdentity:
    """The first processor of the machine; all are taken to be alike."""
    try:
        text = cpu_info.read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        text = ""
    fields: dict[str, str] = {}
    for line in text.partition("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        if name.strip() in _CPU_FIELDS:
            fields[name.strip()] = value.strip()
    arm = " ".join(fields[key] for key in ("CPU implementer", "CPU part") if key in fields)
    name = fields.get("model name") or arm or platform.processor() or platform.machine()
    features = " ".join(sorted(fields.get("flags", fields.get("Features", platform.machine())).split()))
    return ProcessorIdentity(name, hashlib.sha256(features.encode()).hexdigest()[:16])


def digest_model(path: Path) -> str:
    """16 hexadecimal digits of a model's files: names, sizes and times of change, and the text of the configuration.

    Args:
        path: a GGUF file, or a directory with config.json and safetensors.

    Raises:
        OSError: they cannot be read.
    """
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted([*path.glob("*.safetensors"), path / "config.json"])
    for file in files:
        stat = file.stat()
        digest.update(f"{file.name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
        if file.name == "config.json":
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
