"""Keys of blocks."""

import numpy as np

from scheduler.block_hash import DIGEST_BYTES, chain_hash, root_hash


def tokens(*ids: int) -> bytes:
    return np.array(ids, dtype=np.int32).tobytes()


def test_a_key_names_the_tokens_their_order_and_all_before_them() -> None:
    root = root_hash("")
    first = chain_hash(root, tokens(1, 2))
    others = [
        chain_hash(root, tokens(2, 1)),
        chain_hash(root, tokens(1, 3)),
        chain_hash(first, tokens(1, 2)),
        chain_hash(root_hash("salt"), tokens(1, 2)),
    ]
    assert len({first, *others}) == 5 and len(first) == DIGEST_BYTES
    assert chain_hash(root, tokens(1, 2)) == first
