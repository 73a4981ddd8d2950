import os
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.models.decoder import Decoder
from engine.models.native_decoder import NativeDecoder
from engine.process_config import ProcessConfig
from engine.processors import Processors
from engine.runner_factory import build_model_runner, load_kernels, max_model_len, settle_threads
from engine.thread_probe import ThreadChoice
from engine.weights import load_model
from kernels.native_library import NativeLibrary
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


def test_the_way_out_is_the_option_that_gives_the_memory() -> None:
    with pytest.raises(ValueError, match="raise --device-memory or ask for less"):
        max_model_len(1024, 2048, 512, "--device-memory")


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
        str(tiny_model_path), "float32", kv_cache_memory_bytes=2**20, kernels=kernels, threads=2, predict_steps=False
    )  # type: ignore[arg-type]
    config = ProcessConfig(engine, SchedulerConfig(), "", "", 0)
    built = build_model_runner(config, lambda phase, fraction: None)
    assert isinstance(built.runner._decoder, decoder_type)  # type: ignore[attr-defined]
    assert built.threads == 2 and threads_set == [1 if kernels == "auto" else 2]


def _choose(monkeypatch: pytest.MonkeyPatch, num_threads: int) -> ThreadChoice:
    """What the probe finds from now on."""
    choice = ThreadChoice(num_threads, {1: 0.003, 2: 0.002})
    monkeypatch.setattr("engine.thread_probe.probe_threads", lambda decoder, library: choice)
    return choice


def test_a_probe_settles_the_threads_that_serve(
    tiny_model_path: Path, native_library: NativeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = native_library.with_threads(2)
    model = load_model(str(tiny_model_path), "float32", lambda _: None, library=given)
    hidden = torch.randn(3, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    expected = model.decoder.logits(hidden)

    choice = _choose(monkeypatch, 2)
    assert settle_threads(model, given) == (model, given, choice.step_s)

    choice = _choose(monkeypatch, 1)
    settled, library, step_s = settle_threads(model, given)
    assert library.num_threads == 1 and step_s == choice.step_s
    with pytest.raises(ValueError, match="the native library is closed"):
        given.num_threads  # noqa: B018 - a property that raises
    assert settled.decoder.logits(hidden).equal(expected)
    assert settle_threads(settled, library) == (settled, library, {})  # nothing to choose
    library.close()


@pytest.mark.parametrize(("variable", "is_probed"), [(None, True), ("2", False)])
def test_threads_are_probed_unless_somebody_chose(
    tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None, is_probed: bool
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr("engine.runner_factory.available_processors", lambda: Processors(4, 2, None))
    if variable is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    choice = _choose(monkeypatch, 1)
    engine = EngineConfig(str(tiny_model_path), dtype="float32", kv_cache_memory_bytes=2**20, predict_steps=False)
    phases: list[str] = []
    config = ProcessConfig(engine, SchedulerConfig(), "", "", 0)
    built = build_model_runner(config, lambda phase, fraction: phases.append(phase))
    assert ("choosing compute threads" in phases) is is_probed
    assert (built.threads, built.step_s_by_threads) == ((1, choice.step_s) if is_probed else (2, {}))
