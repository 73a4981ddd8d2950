"""The form of a block on disk: whatever is changed in a file is found out."""

from __future__ import annotations

import pytest
import xxhash

from offload.kv_file import HEADER_BYTES, MAX_HASH_BYTES, KVFileError, KVFileFormat, checksum
from tests.kv_tiers import FINGERPRINT, block_of, key

BLOCK = block_of(1, 61).numpy().tobytes()
FORM = KVFileFormat(FINGERPRINT.digest, len(BLOCK))


def verify(content: bytes, block_hash: bytes = key(1), form: KVFileFormat = FORM) -> int:
    return form.verify(content[:HEADER_BYTES], memoryview(content[HEADER_BYTES:]), block_hash)


def test_a_block_comes_back_with_its_checksum() -> None:
    expected = xxhash.xxh3_64(BLOCK).intdigest()
    assert checksum(memoryview(BLOCK)) == expected
    assert verify(FORM.header(key(1), expected) + BLOCK) == expected


def test_every_changed_bit_is_found() -> None:
    content = FORM.header(key(1), checksum(memoryview(BLOCK))) + BLOCK
    for index in range(len(content)):
        for bit in (0, 3, 7):
            changed = bytearray(content)
            changed[index] ^= 1 << bit
            with pytest.raises(KVFileError):
                verify(bytes(changed))


@pytest.mark.parametrize(
    ("form", "block_hash", "why"),
    [
        (FORM, key(2), "of another block"),
        (KVFileFormat("f" * 16, len(BLOCK)), key(1), f"fingerprint b'{FINGERPRINT.digest}'"),
        (KVFileFormat(FINGERPRINT.digest, len(BLOCK) + 1), key(1), "of another block"),
        (FORM, key(1)[:-1], "of another block"),
    ],
)
def test_a_whole_block_of_something_else_is_found(form: KVFileFormat, block_hash: bytes, why: str) -> None:
    content = FORM.header(key(1), checksum(memoryview(BLOCK))) + BLOCK
    with pytest.raises(KVFileError, match=why):
        verify(content, block_hash, form)


def test_another_version_of_the_format_is_told_from_damage() -> None:
    content = bytearray(FORM.header(key(1), checksum(memoryview(BLOCK))) + BLOCK)
    content[8:12] = (7).to_bytes(4, "little")
    with pytest.raises(KVFileError, match="format is version 7, this build reads 1"):
        verify(bytes(content))


def test_a_hash_that_does_not_fit_is_refused() -> None:
    assert len(FORM.header(bytes(MAX_HASH_BYTES), 0)) == HEADER_BYTES
    with pytest.raises(ValueError, match="33 bytes; at most 32"):
        FORM.header(bytes(MAX_HASH_BYTES + 1), 0)


def test_sizes_count_whole_pieces_of_the_disk() -> None:
    assert FORM.file_bytes == HEADER_BYTES + len(BLOCK) and FORM.disk_bytes == 4096
    assert KVFileFormat(FINGERPRINT.digest, 4096).disk_bytes == 8192
    assert KVFileFormat(FINGERPRINT.digest, 4096 - HEADER_BYTES).disk_bytes == 4096
