from __future__ import annotations

import os
from pathlib import Path

import pytest

from offload.fingerprint import digest_model, identify_processor
from tests.record_builders import make_fingerprint

X86 = "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 {extra}\n\nprocessor\t: 1\nmodel name\t: Other\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd bf16\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"


def test_equal_fingerprints_have_equal_digests() -> None:
    assert make_fingerprint().digest == make_fingerprint().digest
    assert list(make_fingerprint().differences(make_fingerprint())) == []
    assert list(make_fingerprint().differences(make_fingerprint(num_cores=3))) == [("num_cores", 2, 3)]


def test_a_processor_is_known_by_name_and_by_what_it_can_do(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(X86.format(extra="avx512f"))
    with_avx512 = identify_processor(info)
    info.write_text(X86.format(extra=""))
    without = identify_processor(info)
    assert with_avx512.name == without.name == "Some CPU"
    assert with_avx512.features != without.features
    info.write_text(ARM)
    assert identify_processor(info).name == "0x41 0xd4f"
    assert identify_processor(tmp_path / "absent").name  # no Linux: what Python knows


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"hidden_size": 64}')
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    return tmp_path


def test_a_model_is_another_once_a_file_of_it_changed(model: Path) -> None:
    before = digest_model(model)
    (model / "tokenizer.json").write_text("{}")  # not of the weights
    assert digest_model(model) == before
    weights = model / "model.safetensors"
    os.utime(weights, ns=(0, 12345))
    touched = digest_model(model)
    assert touched != before
    weights.write_bytes(b"more weights")
    os.utime(weights, ns=(0, 12345))
    assert digest_model(model) != touched


def test_a_model_of_one_file(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    first = digest_model(file)
    os.utime(file, ns=(0, 1))
    assert digest_model(file) != first
    with pytest.raises(OSError, match="absent"):
        digest_model(tmp_path / "absent")
