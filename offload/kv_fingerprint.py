"""What the bytes of a KV block depend on beside its tokens: blocks of another fingerprint must not be read."""

from __future__ import annotations

import dataclasses
import hashlib
import json

LAYOUT_VERSION = 1
"""Of a block's bytes: [layers, 2, block_size, kv_heads, head_dim], keys before values."""
DIGEST_CHARACTERS = 16


@dataclasses.dataclass(frozen=True, slots=True)
class KVFingerprint:
    """Plain text and numbers. The salt of a request is in the hash of its blocks."""

    model: str
    """Digest of its files: the architecture and the revision of its weights."""
    weights: str
    """What they are converted to when they are loaded; "stored": nothing."""
    dtype: str
    """Of keys and values."""
    kernels: str
    """Who computes: a name and a digest of the sources; other kernels round otherwise."""
    block_size: int
    """Tokens a block."""
    num_layers: int
    num_kv_heads: int
    """Of this rank."""
    head_dim: int
    tp_size: int = 1
    """How many ranks share the heads."""
    tp_rank: int = 0
    layout_version: int = LAYOUT_VERSION

    @property
    def manifest(self) -> str:
        """JSON with a line a field, for people who look into the directory."""
        return json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True) + "\n"

    @property
    def digest(self) -> str:
        """16 hexadecimal digits: equal fingerprints, equal digests."""
        return hashlib.sha256(self.manifest.encode()).hexdigest()[:DIGEST_CHARACTERS]
