"""The native kernels: found or built, loaded, and called.

One shared library of plain C functions (kernels/csrc/headrace.h), compiled by one command at install or first use and
kept under a name made of its sources, the compiler and the machine. Which instruction set runs is chosen when it is
loaded. `NativeLibrary` owns the compute threads; the composition makes one and hands it down.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

SOURCE_DIRECTORY = Path(__file__).resolve().parent / "csrc"
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-O3", "-std=c++17", "-fno-math-errno", "-ffp-contract=fast", "-fPIC", "-shared", "-pthread")
INSTRUCTION_SETS = ("avx512bf16", "avx512", "avx2", "neon", "generic")
"""Best first; a machine has some of them."""
ISA_VARIABLE = "HEADRACE_KERNELS_ISA"
_OK, _OUT_OF_MEMORY = 0, 1
"""`hr_status` of headrace.h."""
_BUILD_TIMEOUT_S = 600.0
_OUTPUT_CHARS = 2000


class NativeLibraryError(Exception):
    """The native kernels cannot be used here; says why and what to do. PyTorch's operators are the way on."""


class Arguments(ctypes.Structure):
    """Mirror of one `hr_X_args` of headrace.h, field by field."""

    OPERATION: ClassVar[str]
    """X."""


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Where built libraries are kept: beside the models, see `server.model_cache.default_cache_dir`."""
    if own := environment.get("HEADRACE_CACHE"):
        return Path(own).expanduser() / "kernels"
    if xdg := environment.get("XDG_CACHE_HOME"):
        return Path(xdg) / "headrace" / "kernels"
    return Path.home() / ".cache" / "headrace" / "kernels"


def build_library(
    environment: Mapping[str, str], source_directory: Path = SOURCE_DIRECTORY, extra_flags: tuple[str, ...] = ()
) -> Path:
    """The shared library of these sources, compiled unless the cache has it; safe beside other processes.

    Raises:
        NativeLibraryError: there is no compiler, it fails, or the cache cannot be written.
    """
    compiler = find_compiler(environment)
    flags = (*FLAGS, *extra_flags)
    sources = sorted(source_directory.glob("*.cpp"))
    path = cache_directory(environment) / f"headrace-kernels-{_fingerprint(compiler, flags, source_directory)}.so"
    if path.is_file():
        return path
    with _exclusive(path.parent):
        if path.is_file():  # another process built it while this one waited
            return path
        with tempfile.TemporaryDirectory(prefix=".build-", dir=path.parent) as folder:
            built = Path(folder) / path.name
            _compile([*compiler, *flags, *map(str, sources), "-o", str(built)])
            built.replace(path)
    return path


def find_compiler(environment: Mapping[str, str]) -> list[str]:
    """Command of the C++ compiler: $CXX, else the first that the path has.

    Raises:
        NativeLibraryError: there is none.
    """
    if chosen := environment.get("CXX"):
        command = shlex.split(chosen)
        if command and shutil.which(command[0], path=environment.get("PATH")):
            return command
        raise NativeLibraryError(f"CXX is {chosen!r}, which is not a command; unset it or name a C++ compiler")
    for name in COMPILERS:
        if found := shutil.which(name, path=environment.get("PATH")):
            return [found]
    raise NativeLibraryError(
        f"no C++ compiler is on the path (looked for {', '.join(COMPILERS)}); "
        "install one (Debian, Ubuntu: g++; Fedora: gcc-c++; macOS: xcode-select --install) or set CXX"
    )


def _fingerprint(compiler: list[str], flags: tuple[str, ...], source_directory: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(source_directory.iterdir()):
        if path.suffix in {".cpp", ".h", ".inc"}:
            digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    version = _run([*compiler, "--version"]).stdout
    digest.update("\0".join((*compiler, version, *flags, platform.system(), platform.machine())).encode())
    return digest.hexdigest()[:16]


def _compile(command: list[str]) -> None:
    result = _run(command)
    if result.returncode:
        shown = (result.stderr or result.stdout)[-_OUTPUT_CHARS:]
        raise NativeLibraryError(f"the native kernels do not compile: {shlex.join(command)}\n{shown}")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_BUILD_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeLibraryError(f"{shlex.join(command)}: {error}") from error


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock_file = (folder / ".lock").open("w")
    except OSError as error:
        raise NativeLibraryError(
            f"{folder} cannot be written ({error.strerror}): set HEADRACE_CACHE to a folder that can"
        ) from error
    with lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        yield


class NativeLibrary:
    """The loaded kernels with their compute threads and scratch memory; one operation runs at a time.

    Calls release the interpreter's lock.
    """

    def __init__(self, path: Path, num_threads: int, isa: str = "") -> None:
        """
        Args:
            path: of `build_library`.
            num_threads: that share an operation, the caller among them.
            isa: one of INSTRUCTION_SETS; empty: the best that the processor has.

        Raises:
            NativeLibraryError: the file cannot be loaded, or the processor has not got the instruction set.
            ValueError: `num_threads` is less than 1.
        """
        if num_threads < 1:
            raise ValueError(f"num_threads is {num_threads}, it must be at least 1")
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise NativeLibraryError(f"{path} cannot be loaded: {error}") from error
        _declare(self._library)
        self._path = path
        self._functions: dict[str, ctypes._NamedFuncPointer] = {}
        self._context: int | None = self._library.hr_context_create(isa.encode(), num_threads)
        if not self._context:
            raise NativeLibraryError(
                f"this processor has {', '.join(self.supported_isas())}; "
                f"{isa or 'the native kernels'} with {num_threads} threads cannot be had"
            )

    @property
    def path(self) -> Path:
        """Of the shared library; its name ends with a digest of sources and compiler."""
        return self._path

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        name: bytes = self._library.hr_context_isa(self._open_context())
        return name.decode()

    @property
    def num_threads(self) -> int:
        return int(self._library.hr_context_num_threads(self._open_context()))

    @property
    def scratch_bytes(self) -> int:
        """Taken by operations for intermediate results so far."""
        return int(self._library.hr_context_scratch_bytes(self._open_context()))

    def with_threads(self, num_threads: int) -> NativeLibrary:
        """The same kernels with threads and scratch memory of their own.

        Raises:
            NativeLibraryError: the threads cannot be had.
            ValueError: `num_threads` is less than 1.
        """
        return NativeLibrary(self._path, num_threads, self.isa)

    def supported_isas(self) -> tuple[str, ...]:
        """Those of INSTRUCTION_SETS that this processor has, best first."""
        return tuple(name for name in INSTRUCTION_SETS if self._library.hr_isa_is_supported(name.encode()))

    def call(self, arguments: Arguments) -> bool:
        """Run the operation that the arguments are of.

        Returns:
            Whether it was done; False: an index points to where nothing is, in an operation that looks for that.

        Raises:
            MemoryError: no scratch memory.
        """
        name = arguments.OPERATION
        function = self._functions.get(name) or self._bind(type(arguments))
        status = function(self._open_context(), ctypes.byref(arguments))
        if status == _OUT_OF_MEMORY:
            raise MemoryError(f"native {name}: no memory for intermediate results")
        return bool(status == _OK)

    def call_beside(self, arguments: Arguments) -> None:
        """Run what needs neither threads nor scratch memory, beside an operation of any thread; closed or not."""
        function = self._functions.get(arguments.OPERATION) or self._bind_beside(type(arguments))
        function(ctypes.byref(arguments))

    def close(self) -> None:
        """End the threads and give the scratch memory back; idempotent. No call may run."""
        if self._context:
            self._library.hr_context_destroy(self._context)
            self._context = None

    def _open_context(self) -> int:
        if not self._context:
            raise ValueError("the native library is closed")
        return self._context

    def _bind(self, arguments_type: type[Arguments]) -> ctypes._NamedFuncPointer:
        function = self._find(arguments_type)
        function.restype, function.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_void_p)
        return function

    def _bind_beside(self, arguments_type: type[Arguments]) -> ctypes._NamedFuncPointer:
        function = self._find(arguments_type)
        function.restype, function.argtypes = None, (ctypes.c_void_p,)
        return function

    def _find(self, arguments_type: type[Arguments]) -> ctypes._NamedFuncPointer:
        name = arguments_type.OPERATION
        size_function = getattr(self._library, f"hr_{name}_args_size")
        size_function.restype, size_function.argtypes = ctypes.c_size_t, ()
        expected = size_function()
        assert ctypes.sizeof(arguments_type) == expected, f"{name}: {ctypes.sizeof(arguments_type)} != {expected} bytes"
        function: ctypes._NamedFuncPointer = getattr(self._library, f"hr_{name}")
        self._functions[name] = function
        return function


def _declare(library: ctypes.CDLL) -> None:
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32
    for name, result, arguments in (
        ("hr_context_create", pointer, (text, number)),
        ("hr_context_destroy", None, (pointer,)),
        ("hr_isa_is_supported", number, (text,)),
        ("hr_context_isa", text, (pointer,)),
        ("hr_context_num_threads", number, (pointer,)),
        ("hr_context_scratch_bytes", ctypes.c_int64, (pointer,)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


def load_native_library(num_threads: int, environment: Mapping[str, str] = os.environ) -> NativeLibrary:
    """Build where needed, and load; $HEADRACE_KERNELS_ISA chooses the instruction set.

    Raises:
        NativeLibraryError: see `build_library` and `NativeLibrary`.
    """
    return NativeLibrary(build_library(environment), num_threads, environment.get(ISA_VARIABLE, ""))
