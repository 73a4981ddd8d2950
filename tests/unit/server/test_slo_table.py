"""The TOML file of latency classes: what it may say, and what its errors name."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.slo_table import MAX_CLASSES, SLOTableError, load_slo_classes

_MINIMAL = "[classes.chat]\nttft_base_s = 1.0\ntpot_s = 0.05\n"


def _load(tmp_path: Path, text: str, default_class: str | None = "chat") -> object:
    path = tmp_path / "classes.toml"
    path.write_text(text)
    return load_slo_classes(str(path), default_class)


def test_no_file_means_the_built_in_classes() -> None:
    classes = load_slo_classes(None, None)
    assert classes.names == ("realtime", "interactive", "standard", "batch")
    assert classes.default.name == "standard"
    assert load_slo_classes(None, "batch").default.name == "batch"


def test_a_file_replaces_every_class_and_its_order_is_the_rank(tmp_path: Path) -> None:
    path = tmp_path / "classes.toml"
    path.write_text(
        "default_class = 'bulk'\n"
        "[classes.chat]\nservice_tiers = ['fast', 'auto']\nttft_base_s = 1\nttft_per_1k_tokens_s = 0.25\n"
        "tpot_s = 0.05\nmax_stall_s = 0.5\nprotected = true\nwhen_infeasible = 'degrade'\ndegrade_to = 'bulk'\n"
        "objective = 0.99\nshare = 0.6\nqueue_cap_tokens = 1000\nmax_wait_s = 5\n"
        "[classes.bulk]\nttft_base_s = 60.0\ntpot_s = 0.4\n"
    )
    classes = load_slo_classes(str(path), None)
    assert classes.names == ("chat", "bulk")
    assert classes.default.name == "bulk"
    chat = classes.get("chat")
    assert (chat.rank, chat.service_tiers, chat.ttft_base_s, chat.max_stall_s) == (0, ("fast", "auto"), 1.0, 0.5)
    assert (chat.protected, chat.when_infeasible, chat.degrade_to) == (True, "degrade", "bulk")
    assert (chat.objective, chat.share, chat.queue_cap_tokens, chat.max_wait_s) == (0.99, 0.6, 1000, 5.0)
    bulk = classes.get("bulk")
    assert (bulk.rank, bulk.max_stall_s, bulk.protected, bulk.when_infeasible) == (1, None, False, "queue")


def test_the_example_of_the_readme_is_one_that_degrades(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    (example,) = [part.split("```")[0] for part in readme.split("```toml\n")[1:]]
    path = tmp_path / "classes.toml"
    path.write_text(example)
    classes = load_slo_classes(str(path), None)
    chat = classes.default
    assert (chat.name, chat.is_guaranteed, chat.degrade_to) == ("chat", True, "nightly")
    assert chat is classes.by_tier("priority")
    assert not classes.get("nightly").is_guaranteed


def test_the_command_lines_default_class_wins_over_the_files(tmp_path: Path) -> None:
    text = "default_class = 'chat'\n" + _MINIMAL + "[classes.bulk]\nttft_base_s = 60.0\ntpot_s = 0.4\n"
    path = tmp_path / "classes.toml"
    path.write_text(text)
    assert load_slo_classes(str(path), "bulk").default.name == "bulk"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (_MINIMAL + "tpots_s = 1\n", ["chat", "tpots_s", "tpot_s"]),
        ("[classes.chat]\nttft_base_s = 1.0\n", ["chat", "tpot_s", "missing"]),
        ("[classes.chat]\nttft_base_s = 0.0\ntpot_s = 0.05\n", ["chat", "ttft_base_s", "0.0", "above 0"]),
        ("[classes.chat]\nttft_base_s = 'x'\ntpot_s = 0.05\n", ["ttft_base_s", "'x'", "number"]),
        ("[classes.chat]\nttft_base_s = true\ntpot_s = 0.05\n", ["ttft_base_s", "True"]),
        ("[classes.chat]\nttft_base_s = nan\ntpot_s = 0.05\n", ["ttft_base_s", "nan", "finite"]),
        ("[classes.chat]\nttft_base_s = 1.0\ntpot_s = inf\n", ["tpot_s", "inf", "finite"]),
        (_MINIMAL + "objective = 1.5\n", ["objective", "1.5", "0..1"]),
        (_MINIMAL + "share = -0.5\n", ["share", "-0.5", "0..1"]),
        (_MINIMAL + "ttft_per_1k_tokens_s = -1\n", ["ttft_per_1k_tokens_s", "-1", "at least 0"]),
        (_MINIMAL + "max_stall_s = 0.01\n", ["max_stall_s", "0.01", "tpot_s", "0.05"]),
        (_MINIMAL + "queue_cap_tokens = 1.5\n", ["queue_cap_tokens", "1.5", "whole number"]),
        (_MINIMAL + "rank = -1\n", ["rank", "-1"]),
        (_MINIMAL + "protected = 1\n", ["protected", "true or false"]),
        (_MINIMAL + "when_infeasible = 'pray'\n", ["when_infeasible", "'pray'", "refuse"]),
        (_MINIMAL + "when_infeasible = 'degrade'\n", ["when_infeasible", "degrade_to"]),
        (_MINIMAL + "degrade_to = 'bulk'\n", ["degrade_to", "'bulk'", "chat"]),
        (_MINIMAL + "degrade_to = 'chat'\n", ["degrade_to", "'chat'", "rank above 0"]),
        (_MINIMAL + "service_tiers = 'fast'\n", ["service_tiers", "'fast'", "list"]),
        (_MINIMAL + "service_tiers = ['Fast tier']\n", ["service_tiers", "Fast tier"]),
        ("[classes.Chat]\nttft_base_s = 1.0\ntpot_s = 0.05\n", ["'Chat'", "a-z"]),
        ("[classes]\nchat = 3\n", ["'chat'", "3", "[classes.chat]"]),
        ("[klasses.chat]\n", ["klasses", "classes"]),
        ("default_class = 'chat'\n", ["[classes.NAME]"]),
        ("default_class = 3\n" + _MINIMAL, ["default_class", "3"]),
        ("classes = [", ["not TOML"]),
    ],
)
def test_an_error_names_the_file_the_key_the_value_and_the_limit(tmp_path: Path, text: str, names: list[str]) -> None:
    with pytest.raises(SLOTableError) as raised:
        _load(tmp_path, text)
    for name in ["classes.toml", *names]:
        assert name in str(raised.value)


def test_rank_shares_and_tiers_must_fit_together(tmp_path: Path) -> None:
    other = "[classes.bulk]\nttft_base_s = 60.0\ntpot_s = 0.4\n"
    with pytest.raises(SLOTableError, match="ranks repeat"):
        _load(tmp_path, _MINIMAL + other + "rank = 0\n")
    with pytest.raises(SLOTableError, match=r"add up to 1\.200, the limit is 1"):
        _load(tmp_path, _MINIMAL + "share = 0.6\n" + other + "share = 0.6\n")
    with pytest.raises(SLOTableError, match="two classes"):
        _load(tmp_path, _MINIMAL + "service_tiers = ['fast']\n" + other + "service_tiers = ['fast']\n")
    with pytest.raises(SLOTableError, match="default class 'standard' is not one of"):
        _load(tmp_path, _MINIMAL, default_class=None)


def test_the_number_of_classes_is_bounded(tmp_path: Path) -> None:
    text = "".join(f"[classes.c{i}]\nttft_base_s = 1.0\ntpot_s = 0.05\nshare = 0.01\n" for i in range(MAX_CLASSES + 1))
    with pytest.raises(SLOTableError, match=f"{MAX_CLASSES + 1} classes, the limit is {MAX_CLASSES}"):
        _load(tmp_path, text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SLOTableError, match=r"absent\.toml: cannot read"):
        load_slo_classes(str(tmp_path / "absent.toml"), None)
