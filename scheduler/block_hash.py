"""Keys of full KV blocks: a chained cryptographic hash over the tokens so far and the request's salt.

Equal keys mean equal tokens, in equal order, from the start of the prompt, under the same salt: BLAKE2b with 128 bits
leaves no practical collision, so a hit needs no comparison of tokens.
"""

from __future__ import annotations

import hashlib

from scheduler.request import BlockHash

DIGEST_BYTES = 16


def root_hash(cache_salt: str) -> BlockHash:
    """The parent of a prompt's first block; different salts share no block."""
    return hashlib.blake2b(cache_salt.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def chain_hash(parent: BlockHash, block_tokens: bytes) -> BlockHash:
    """Key of the block with `block_tokens` (int32, little-endian) that follows the block with key `parent`."""
    return hashlib.blake2b(parent + block_tokens, digest_size=DIGEST_BYTES).digest()
