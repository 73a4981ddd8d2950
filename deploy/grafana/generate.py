"""Writes the dashboards: `python deploy/grafana/generate.py`.

With `--check` it writes nothing and ends with status 1 where a file is not what it would write.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from engine_board import ENGINE_BOARD
from offload_board import OFFLOAD_BOARD
from slo_board import SLO_BOARD

DASHBOARDS = Path(__file__).resolve().parent / "dashboards"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the Grafana dashboards.")
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 where a file is out of date")
    arguments = parser.parse_args()
    texts = {f"{b.uid}.json": json.dumps(b.encode(), indent=1) + "\n" for b in (SLO_BOARD, OFFLOAD_BOARD, ENGINE_BOARD)}
    found = {path.name: path.read_text() for path in sorted(DASHBOARDS.glob("*.json"))}
    if found == texts:
        return 0
    if arguments.check:
        wrong = sorted(name for name in {*found, *texts} if found.get(name) != texts.get(name))
        sys.stderr.write(f"deploy/grafana/dashboards: out of date: {', '.join(wrong)}; run `make generate`\n")
        return 1
    DASHBOARDS.mkdir(exist_ok=True)
    for name in sorted(set(found) - set(texts)):
        (DASHBOARDS / name).unlink()
    for name, text in texts.items():
        (DASHBOARDS / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
