from pathlib import Path

import pytest

from server.record_files import RecordFileError, check_record_files


def test_files_that_can_be_written_are_made_and_left_as_they_are(tmp_path: Path) -> None:
    events, requests = tmp_path / "events", tmp_path / "requests"
    requests.write_text("a line\n")
    for _ in range(2):
        check_record_files(str(events), str(requests))
    assert requests.read_text() == "a line\n" and events.exists()
    check_record_files(None, None)


@pytest.mark.parametrize(
    ("event_log", "request_log", "message"),
    [
        (".", None, r"^--event-log .*: Is a directory; name a file that can be written"),
        ("absent/x", None, r"^--event-log .*absent/x: No such file or directory; name a file"),
        ("notes", None, r"^--event-log .*notes: it is not an event log of this engine; name a file"),
        (None, ".", r"^--request-log .*: Is a directory; name a file that can be written"),
        (None, "absent/x", r"^--request-log .*absent/x: No such file or directory; name a file"),
        ("same", "same", r"^--event-log and --request-log are both .*same; name two files"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    tmp_path: Path, event_log: str | None, request_log: str | None, message: str
) -> None:
    (tmp_path / "notes").write_text("something else, longer than a magic number")
    event_path, request_path = (None if name is None else str(tmp_path / name) for name in (event_log, request_log))
    with pytest.raises(RecordFileError, match=message) as caught:
        check_record_files(event_path, request_path)
    assert "\n" not in str(caught.value)
