"""`python -m kernels`: build the native kernels ahead of their first use, so that no start waits for the compiler.

Nothing is done where the cache has them. Without a compiler it says so and ends well: PyTorch's operators compute then.
"""

from __future__ import annotations

import os
import sys

from kernels.native_library import NativeLibraryError, build_library


def main() -> None:
    try:
        build_library(os.environ)
    except NativeLibraryError as error:
        sys.stderr.write(f"native kernels are not built, PyTorch's operators will compute, slower: {error}\n")


if __name__ == "__main__":
    main()
