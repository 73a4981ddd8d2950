"""Names the file in whatever goes wrong with it."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator
from pathlib import Path

from loadgen.traces.trace_error import TraceError


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Raises TraceError, with the path, for every error of opening, decoding, parsing or writing it."""
    try:
        yield
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}; name a file") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not text in UTF-8; unpack it first if it is an archive") from error
    except csv.Error as error:
        raise TraceError(f"{path}: not CSV ({error})") from error
    except RecursionError as error:
        raise TraceError(f"{path}: JSON that is nested too deeply; no trace that can be read is") from error
    except OverflowError as error:
        raise TraceError(f"{path}: a number is too large ({error}); no trace that can be read has such") from error
