"""A pull on the terminal: which source is tried, a bar, why a source failed. All on standard error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from server.known_model import KNOWN_MODELS
from server.model_source import PullEvents


@contextlib.contextmanager
def pull_progress(name: str, console: Console) -> Iterator[PullEvents]:
    """Events that show the pull of `name`; the bar appears with the first source and goes when the body ends."""
    known = KNOWN_MODELS.get(name)
    total = known.size_bytes if known else None
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(name, total=total, visible=False)

        def source(source_name: str) -> None:
            console.print(f"Fetching {name} from {source_name}", highlight=False)
            # Models of the hub show the hub client's own bars.
            progress.update(task, completed=0, visible=total is not None)

        def num_bytes(done: int) -> None:
            progress.update(task, completed=done if total is None else min(done, total))

        def failed(message: str) -> None:
            console.print(f"  {message}", style="yellow", highlight=False, markup=False)

        def waiting() -> None:
            console.print(f"Another process is fetching {name}: waiting for it", highlight=False)

        yield PullEvents(source, num_bytes, failed, waiting)
