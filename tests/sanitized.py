"""`python -m tests.sanitized [PYTEST ARGUMENTS]`: the kernel tests over a build with GCC's sanitizers.

An access outside a buffer or undefined behaviour in the native kernels ends the run with its place in the sources. The
tensors that the tests hand over are allocated exactly, so that a single byte too far is noticed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kernels.native_library import build_library, find_compiler

FLAGS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
FLAGS_VARIABLE = "HEADRACE_TEST_KERNEL_FLAGS"
"""Read by the fixture that builds the library for the kernel tests."""
TESTS = ("tests/unit/kernels/native", "--ignore=tests/unit/kernels/native/test_native_library.py")
"""All but the tests of the build itself: compilers do not run well under a preloaded sanitizer."""


def runtime_library(compiler: list[str]) -> Path:
    """GCC's address sanitizer, which must be loaded before everything else.

    Raises:
        SystemExit: this compiler has none.
    """
    command = [*compiler, "-print-file-name=libasan.so"]
    path = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    if not path.is_absolute():
        raise SystemExit(f"{compiler[0]} has no libasan.so: install GCC with its sanitizers, or set CXX=g++")
    return path


def main() -> None:
    build_library(os.environ, extra_flags=FLAGS)  # before anything is preloaded
    environment = os.environ | {
        FLAGS_VARIABLE: " ".join(FLAGS),
        "LD_PRELOAD": str(runtime_library(find_compiler(os.environ))),
        "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter's own
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    # Not captured: a sanitizer's report goes to standard error and the process ends at once.
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *TESTS, *sys.argv[1:]]
    os.execve(sys.executable, command, environment)


if __name__ == "__main__":
    main()
