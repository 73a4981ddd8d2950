import os
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.models.decoder import Decoder
from engine.models.native_decoder import NativeDecoder
from engine.process_config import ProcessConfig
from engine.runner_factory import build_model_runner, load_kernels, max_model_len
from scheduler.config import SchedulerConfig


def test_the_models_limit_is_capped_by_the_kv_cache() -> None:
    assert max_model_len(None, model_max_len=2048, kv_cache_tokens=10_000) == 2048
    assert max_model_len(None, model_max_len=2048, kv_cache_tokens=512) == 512
    assert max_model_len(300, model_max_len=2048, kv_cache_tokens=512) == 300


@pytest.mark.parametrize(
    ("wanted", "message"),
    [(4096, "is 4096, the model allows 2048 tokens"), (1024, "the KV cache holds 512 tokens; raise --kv-cache-memory")],
)
def test_more_than_there_is_names_the_limit(wanted: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        max_model_len(wanted, model_max_len=2048, kv_cache_tokens=512)


def test_native_kernels_are_loaded_with_the_threads_asked_for() -> None:
    for choice in ("auto", "native"):
        library = load_kernels(choice, 2, os.environ)  # type: ignore[arg-type]
        assert library is not None and library.num_threads == 2
        library.close()
    assert load_kernels("torch", 2, os.environ) is None


def test_without_a_compiler_pytorch_computes_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bare = {"HEADRACE_CACHE": str(tmp_path), "PATH": str(tmp_path)}
    with caplog.at_level("WARNING"):
        assert load_kernels("auto", 1, bare) is None
    (record,) = caplog.records
    assert "PyTorch's operators" in record.getMessage() and "no C++ compiler is on the path" in record.getMessage()
    with pytest.raises(ValueError, match=r"kernels is native: no C\+\+ compiler is on the path"):
        load_kernels("native", 1, bare)


@pytest.mark.parametrize(("kernels", "decoder_type"), [("auto", NativeDecoder), ("torch", Decoder)])
def test_a_runner_is_built_on_the_kernels_asked_for(
    tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: str, decoder_type: type
) -> None:
    threads_set: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads_set.append)
    engine = EngineConfig(
        str(tiny_model_path), dtype="float32", kv_cache_memory_bytes=2**20, kernels=kernels, threads=2
    )  # type: ignore[arg-type]
    config = ProcessConfig(engine, SchedulerConfig(), "", "", 0)
    built = build_model_runner(config, lambda phase, fraction: None)
    assert isinstance(built.runner._decoder, decoder_type)  # type: ignore[attr-defined]
    assert built.threads == 2 and threads_set == [1 if kernels == "auto" else 2]
