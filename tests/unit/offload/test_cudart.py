"""The calls of the runtime that torch has loaded, with a stand-in for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from offload.cudart import LoadedCudart, loaded_runtimes


def test_calls_reach_the_runtime_and_errors_are_cleared_in_every_copy_of_it() -> None:
    calls: list[tuple[object, ...]] = []
    pending = {"torch's": 2, "system's": 2}

    def last_error(name: str) -> int:
        code, pending[name] = pending[name], 0
        return code

    runtime = SimpleNamespace(
        cudaHostRegister=lambda *arguments: calls.append(("register", *arguments)) or 2,
        cudaHostUnregister=lambda *arguments: calls.append(("unregister", *arguments)) or 0,
        cudaGetErrorString=lambda code: f"text of {code}",
        cudaError=lambda code: f"<{code}>",
    )
    cudart = LoadedCudart(runtime, [lambda name=name: last_error(name) for name in pending])
    assert cudart.register(4096, 8192) == 2 and cudart.unregister(4096) == 0
    assert calls == [("register", 4096, 8192, 1), ("unregister", 4096)]
    cudart.clear_error()
    assert pending == {"torch's": 0, "system's": 0}
    assert cudart.describe(2) == "text of <2> (cudaError 2)"


def test_runtimes_are_found_among_the_files_of_the_process(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    torchs, systems = "/env/torch/lib/libcudart-9335f6a2.so.12", "/usr/local/cuda 12/lib64/libcudart.so.12.4.127"
    lines = [
        "7f00-7f10 r--p 00000000 08:01 11  " + torchs,
        "7f10-7f20 r-xp 00001000 08:01 11  " + torchs,
        "7f20-7f30 r--p 00000000 08:01 12  " + systems + " (deleted)",
        "7f30-7f40 r--p 00000000 08:01 13  /opt/libcudart-tools/libother.so",
        "7f40-7f50 rw-p 00000000 00:00 0 ",
        "7f50-7f60 rw-p 00000000 00:00 0  [heap]",
    ]
    maps.write_text("\n".join(lines))
    assert loaded_runtimes(maps) == (torchs, systems)
    assert loaded_runtimes(tmp_path / "no linux") == ()
