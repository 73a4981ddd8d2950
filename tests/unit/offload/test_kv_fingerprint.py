"""Blocks of another model, dtype, layout or rank have another fingerprint."""

from __future__ import annotations

import dataclasses
import json

from tests.kv_tiers import FINGERPRINT


def test_each_field_makes_another_digest() -> None:
    digests = {FINGERPRINT.digest}
    for field in dataclasses.fields(FINGERPRINT):
        value = getattr(FINGERPRINT, field.name)
        changed = dataclasses.replace(FINGERPRINT, **{field.name: value + (1 if isinstance(value, int) else "x")})
        digests.add(changed.digest)
    assert len(digests) == 1 + len(dataclasses.fields(FINGERPRINT))
    assert all(len(digest) == 16 and int(digest, 16) >= 0 for digest in digests)
    assert dataclasses.replace(FINGERPRINT).digest == FINGERPRINT.digest


def test_the_manifest_says_it_in_words() -> None:
    assert json.loads(FINGERPRINT.manifest) == dataclasses.asdict(FINGERPRINT)
