"""Building, finding, loading and closing the native library, and its threads."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
import torch

from kernels.native.norm import add_rms_norm
from kernels.native_library import NativeLibrary, NativeLibraryError, build_library, cache_directory
from tests.strided import randn

COMPILER = """#!/bin/sh
if [ "$1" = --version ]; then echo fake 1.0; exit 0; fi
echo "$@" >> {log}
while [ "$1" != -o ]; do shift; done
echo library > "$2"
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    directory = tmp_path / "csrc"
    directory.mkdir()
    (directory / "a.cpp").write_text("int a;\n")
    (directory / "b.inc").write_text("int b;\n")
    return directory


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A cache of its own and a compiler that notes its calls."""
    compiler = tmp_path / "fake-c++"
    compiler.write_text(COMPILER.format(log=tmp_path / "calls"))
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    return {"HEADRACE_CACHE": str(tmp_path / "cache"), "CXX": str(compiler), "PATH": os.environ["PATH"]}


def calls(tmp_path: Path) -> list[str]:
    path = tmp_path / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_a_library_is_compiled_once(tmp_path: Path, sources: Path, environment: dict[str, str]) -> None:
    first = build_library(environment, sources)
    assert first.read_text() == "library\n" and first.parent == tmp_path / "cache" / "kernels"
    assert build_library(environment, sources) == first
    (call,) = calls(tmp_path)
    assert str(sources / "a.cpp") in call and "b.inc" not in call and "-O3" in call


def test_another_source_compiler_or_flag_is_another_library(sources: Path, environment: dict[str, str]) -> None:
    paths = {build_library(environment, sources), build_library(environment, sources, ("-g",))}
    (sources / "b.inc").write_text("int c;\n")
    paths.add(build_library(environment, sources))
    other = Path(environment["CXX"]).with_name("other-c++")
    other.write_text(Path(environment["CXX"]).read_text().replace("fake 1.0", "fake 2.0"))
    other.chmod(0o700)
    paths.add(build_library(environment | {"CXX": str(other)}, sources))
    assert len(paths) == 4


def test_builds_at_the_same_time_compile_once(tmp_path: Path, sources: Path, environment: dict[str, str]) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(build_library(environment, sources))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(found) == 4 and len(set(found)) == 1 and len(calls(tmp_path)) == 1
    assert [path.name for path in found[0].parent.iterdir() if path.name != ".lock"] == [found[0].name]


def test_the_compilers_options_may_be_part_of_its_name(
    tmp_path: Path, sources: Path, environment: dict[str, str]
) -> None:
    wrapped = environment | {"CXX": f"env FOO=1 {environment['CXX']}"}
    assert build_library(wrapped, sources).is_file() and len(calls(tmp_path)) == 1


def test_no_compiler_says_what_to_install(tmp_path: Path, sources: Path) -> None:
    with pytest.raises(NativeLibraryError, match=r"no C\+\+ compiler .*Debian, Ubuntu: g\+\+"):
        build_library({"HEADRACE_CACHE": str(tmp_path), "PATH": str(tmp_path)}, sources)
    with pytest.raises(NativeLibraryError, match="CXX is 'no-such-compiler -x', which is not a command"):
        build_library({"HEADRACE_CACHE": str(tmp_path), "CXX": "no-such-compiler -x"}, sources)


def test_a_failing_compiler_is_quoted(sources: Path, environment: dict[str, str]) -> None:
    Path(environment["CXX"]).write_text("#!/bin/sh\necho a.cpp:1: not to my taste >&2\nexit 1\n")
    with pytest.raises(NativeLibraryError, match=r"do not compile: .*fake-c\+\+ -O3(.|\n)*not to my taste"):
        build_library(environment, sources)
    assert not list(Path(environment["HEADRACE_CACHE"]).rglob("*.so"))


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, sources: Path, environment: dict[str, str]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NativeLibraryError, match=r"file/kernels cannot be written .* set HEADRACE_CACHE"):
        build_library(environment | {"HEADRACE_CACHE": str(tmp_path / "file")}, sources)


def test_the_cache_lies_beside_the_models() -> None:
    assert cache_directory({"HEADRACE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a/kernels")
    assert cache_directory({"XDG_CACHE_HOME": "/b"}) == Path("/b/headrace/kernels")
    assert cache_directory({}) == Path.home() / ".cache" / "headrace" / "kernels"


def test_what_cannot_be_loaded_is_refused(tmp_path: Path, library_path: Path) -> None:
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(b"not a library")
    with pytest.raises(NativeLibraryError, match=r"damaged\.so cannot be loaded"):
        NativeLibrary(damaged, 1)
    with pytest.raises(NativeLibraryError, match=r"this processor has .*generic; sse9 with 1 threads cannot be had"):
        NativeLibrary(library_path, 1, "sse9")
    with pytest.raises(ValueError, match="num_threads is 0"):
        NativeLibrary(library_path, 0)


def test_the_best_instruction_set_is_taken(library_path: Path) -> None:
    library = NativeLibrary(library_path, 3)
    assert library.isa == library.supported_isas()[0]
    assert library.supported_isas()[-1] == "generic"
    assert library.num_threads == 3
    library.close()


def test_a_closed_library_refuses_calls(library_path: Path) -> None:
    library = NativeLibrary(library_path, 2)
    library.close()
    library.close()
    with pytest.raises(ValueError, match="the native library is closed"):
        add_rms_norm(library, torch.zeros(1, 4), torch.zeros(4), torch.zeros(1, 4), 1e-5)


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_every_task_is_done_once_on_any_number_of_threads(library_path: Path, num_threads: int) -> None:
    """Thousands of small jobs in a row; each adds 1 to every row, so that a task left out or done twice shows."""
    library = NativeLibrary(library_path, num_threads)
    weight, one = torch.ones(8192), torch.ones(13, 8192)
    for num_rows in (1, 2, 3, 13):
        hidden, expected = torch.zeros(num_rows, 8192), 0
        for _ in range(300):
            add_rms_norm(library, hidden, weight, torch.empty_like(hidden), 1e-5, one[:num_rows])
            expected += 1
        assert torch.equal(hidden, torch.full_like(hidden, expected))
    library.close()


def test_calls_from_several_threads_take_turns(library_path: Path) -> None:
    library = NativeLibrary(library_path, 2)
    hidden, weight = randn(0, 40, 3000), randn(1, 3000)
    expected = torch.empty_like(hidden)
    add_rms_norm(library, hidden, weight, expected, 1e-5)
    results = [torch.empty_like(hidden) for _ in range(4)]

    def work(out: torch.Tensor) -> None:
        for _ in range(50):
            add_rms_norm(library, hidden, weight, out, 1e-5)

    threads = [threading.Thread(target=work, args=(out,)) for out in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert all(torch.equal(out, expected) for out in results)
    library.close()
