"""`headrace compare`: two saved runs, from the options to the exit code."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from rich.console import Console

from loadgen.bootstrap import Bootstrap
from loadgen.compare import compare_pairs, compare_unpaired
from loadgen.compare_report import CompareReport, encode_compare_json, print_comparison
from loadgen.config import BenchError
from loadgen.fail_if import parse_condition
from loadgen.report_file import STDOUT, check_report_paths, write_report
from loadgen.saved_run import SavedRun, plan_differences, read_saved_run

EXIT_COMPARED = 0
EXIT_NOT_COMPARED = 2
EXIT_CONDITION_MET = 3


@dataclasses.dataclass(frozen=True, slots=True)
class CompareConfig:
    """One comparison."""

    first_path: Path
    second_path: Path
    is_paired: bool = True
    allows_invalid: bool = False
    conditions: tuple[str, ...] = ()
    """In the grammar of `loadgen.fail_if`."""
    bootstrap: Bootstrap = dataclasses.field(default_factory=Bootstrap)
    json_path: str | None = None


def main_compare(config: CompareConfig) -> int:
    """Compare, print the table, write the JSON, and return the exit code.

    0: compared, whatever was found; 2: it cannot be compared or a condition cannot be checked; 3: a condition is met.
    """
    errors = Console(stderr=True)
    try:
        read = {"the first result": str(config.first_path), "the second result": str(config.second_path)}
        check_report_paths({"--json": config.json_path}, read)
        report = run_compare(config)
        print_comparison(report, errors if config.json_path == STDOUT else Console())
        write_report(config.json_path, encode_compare_json(report))
    except BenchError as error:
        errors.print(f"headrace compare: {error}", style="bold red", highlight=False, markup=False, soft_wrap=True)
        return EXIT_NOT_COMPARED
    return EXIT_CONDITION_MET if report.met_conditions else EXIT_COMPARED


def run_compare(config: CompareConfig) -> CompareReport:
    """The comparison without its output.

    Raises:
        BenchError: a file is no result, the runs have different plans, or a condition cannot be read or checked.
    """
    conditions = [parse_condition(text) for text in config.conditions]
    first, second = read_saved_run(config.first_path), read_saved_run(config.second_path)
    if not config.allows_invalid:
        _check_valid(first, second)
    differences = plan_differences(first, second)
    if config.is_paired and differences:
        raise BenchError(
            f"the runs have different plans ({'; '.join(differences)}): repeat one with the options of the other, or "
            "compare them with --unpaired"
        )
    compare = compare_pairs if config.is_paired else compare_unpaired
    comparison = compare(first, second, config.bootstrap)
    return CompareReport(
        first=first,
        second=second,
        bootstrap=config.bootstrap,
        plan_differences=differences,
        comparison=comparison,
        conditions=tuple((condition.text, condition.is_met(comparison)) for condition in conditions),
    )


def _check_valid(*runs: SavedRun) -> None:
    for run in runs:
        if run.invalid_reasons:
            raise BenchError(
                f"the numbers of {run.path} must not be believed: {run.invalid_reasons[0]}. Run it again, or compare "
                "all the same with --allow-invalid"
            )
