"""Options made from config dataclasses, and their values from command line, environment and TOML."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import pytest

from engine.config import EngineConfig
from scheduler.config import SchedulerConfig
from server.config import ServerConfig
from server.option import Option, OptionKind, options_of
from server.settings import Settings, SettingsError, load_settings, unknown_variables

OPTIONS = options_of(ServerConfig, EngineConfig, SchedulerConfig, without={"model_path"})


def load(
    typed: dict[str, Any] | None = None, environ: dict[str, str] | None = None, toml: Path | None = None
) -> Settings:
    return load_settings(OPTIONS, typed or {}, environ or {}, toml)


def write_toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "headrace.toml"
    path.write_text(text)
    return path


def option(name: str) -> Option:
    return next(o for o in OPTIONS if o.name == name)


def test_every_field_of_the_three_configs_is_an_option() -> None:
    fields = {
        f.name for config in (ServerConfig, EngineConfig, SchedulerConfig) for f in dataclasses.fields(config)
    } - {"model_path"}
    assert {o.field for o in OPTIONS} == fields


def test_every_option_has_a_help_text() -> None:
    assert [o.name for o in OPTIONS if not o.help.endswith(".")] == []


def test_without_any_source_the_configs_are_their_own_defaults() -> None:
    settings = load()
    assert settings.build(ServerConfig) == ServerConfig()
    assert settings.build(SchedulerConfig) == SchedulerConfig()
    assert settings.build(EngineConfig, model_path="m.gguf") == EngineConfig(model_path="m.gguf")


def test_sizes_and_paths_drop_their_suffix_and_durations_keep_it() -> None:
    assert option("kv-cache-memory").field == "kv_cache_memory_bytes"
    assert option("kv-cache-memory").default_text == "512MiB"
    assert option("request-log").field == "request_log_path"
    assert option("drain-timeout-s").kind is OptionKind.NUMBER
    assert option("dtype").choices == ("auto", "float32", "bfloat16", "float16")
    assert option("max-model-len").is_optional


def test_command_line_beats_environment_beats_toml_beats_default(tmp_path: Path) -> None:
    toml = write_toml(tmp_path, 'port = 1\nhost = "toml"\nmax-num-seqs = 3\nlog_level = "debug"\n')
    environ = {"HEADRACE_PORT": "2", "HEADRACE_HOST": "environment"}
    settings = load({"port": "3"}, environ, toml)
    server = settings.build(ServerConfig)
    assert (server.port, server.host, server.log_level) == (3, "environment", "debug")
    assert settings.build(SchedulerConfig).max_num_seqs == 3
    assert server.body_timeout_s == ServerConfig().body_timeout_s


def test_values_take_the_types_of_their_fields(tmp_path: Path) -> None:
    toml = write_toml(tmp_path, 'kv-cache-memory = "1.5GB"\nmax-body = 65536\ncors-origin = ["a", "b"]\nthreads = 2\n')
    environ = {"HEADRACE_API_KEY": "one, two", "HEADRACE_BATCH_INVARIANT": "true", "HEADRACE_THREADS": ""}
    settings = load({"drain_timeout_s": "2.5", "enable_prefix_caching": False}, environ, toml)
    engine, server = settings.build(EngineConfig, model_path="m"), settings.build(ServerConfig)
    assert (engine.kv_cache_memory_bytes, engine.batch_invariant, engine.threads) == (1_500_000_000, True, 2)
    assert (server.api_keys, server.cors_origins, server.max_body_bytes) == (("one", "two"), ("a", "b"), 65536)
    assert server.drain_timeout_s == 2.5
    assert settings.build(SchedulerConfig).enable_prefix_caching is False


@pytest.mark.parametrize(
    ("typed", "environ", "message"),
    [
        ({"port": "70000"}, {}, "--port is 70000, it must be at most 65535"),
        ({"port": "http"}, {}, "--port is 'http', it must be a whole number"),
        ({}, {"HEADRACE_MAX_NUM_SEQS": "0"}, "HEADRACE_MAX_NUM_SEQS is 0, it must be at least 1"),
        ({"kv_cache_memory": "big"}, {}, "--kv-cache-memory: 'big' is not a size"),
        ({"max_body": "10"}, {}, "--max-body is 10, it must be at least 1KiB"),
        ({"dtype": "int4"}, {}, "--dtype is 'int4', it must be one of auto, float32, bfloat16, float16"),
        ({"drain_timeout_s": "nan"}, {}, "--drain-timeout-s is 'nan', it must be a finite number"),
        ({}, {"HEADRACE_BATCH_INVARIANT": "maybe"}, "HEADRACE_BATCH_INVARIANT is 'maybe', it must be true or false"),
        ({"threads": "0"}, {}, "--threads is 0, it must be at least 1"),
    ],
)
def test_an_error_names_option_value_and_limit(typed: dict[str, Any], environ: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(typed, environ)
    assert str(caught.value).startswith(message)


def test_every_wrong_value_is_told_at_once(tmp_path: Path) -> None:
    toml = write_toml(tmp_path, "block-size = 0\n")
    with pytest.raises(SettingsError) as caught:
        load({"port": "-1"}, {"HEADRACE_THREADS": "x"}, toml)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert f"block-size in {toml} is 0, it must be at least 1" in lines


def test_values_that_do_not_fit_together_are_told_in_option_names() -> None:
    with pytest.raises(SettingsError, match=r"^--max-num-batched-tokens \(8\) must be at least --max-num-seqs \(64\)"):
        load({"max_num_batched_tokens": "8"}).build(SchedulerConfig)


def test_an_unknown_toml_key_is_an_error_with_the_closest_known_one(tmp_path: Path) -> None:
    toml = write_toml(tmp_path, 'kv_cache_memroy = "1GiB"\nport = 1\n')
    with pytest.raises(SettingsError) as caught:
        load(toml=toml)
    assert str(caught.value) == f"{toml}: unknown key 'kv_cache_memroy'; did you mean kv-cache-memory?"


@pytest.mark.parametrize("text", ["port = = 1", 'port = "'])
def test_a_file_that_is_no_toml_is_an_error_with_its_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match=r"headrace\.toml is not valid TOML"):
        load(toml=write_toml(tmp_path, text))


def test_a_missing_toml_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"absent\.toml: No such file"):
        load(toml=tmp_path / "absent.toml")


def test_an_unknown_variable_is_told_with_the_closest_known_one() -> None:
    environ = {
        "HEADRACE_DTPYE": "float32",
        "HEADRACE_KERNELS_ISA": "avx2",
        "HEADRACE_CACHE": "/c",
        "HEADRACE_PORT": "1",
        "HOME": "/h",
    }
    assert unknown_variables(OPTIONS, environ) == ["HEADRACE_DTPYE sets nothing; did you mean HEADRACE_DTYPE?"]


def test_a_secret_is_never_shown(tmp_path: Path) -> None:
    toml = write_toml(tmp_path, 'api-key = { "s3cret" = 1 }\n')
    with pytest.raises(SettingsError) as caught:
        load(toml=toml)
    assert "s3cret" not in str(caught.value)
    assert "s3cret" not in repr(ServerConfig(api_keys=("s3cret",)))


def test_an_empty_api_key_is_refused() -> None:
    with pytest.raises(SettingsError, match="an API key is empty"):
        load(environ={"HEADRACE_API_KEY": "a,,b"}).build(ServerConfig)


def test_a_field_whose_type_has_no_form_on_a_command_line_is_refused() -> None:
    @dataclasses.dataclass
    class Bad:
        table: dict[str, int] = dataclasses.field(default_factory=dict)

    with pytest.raises(TypeError, match="table"):
        options_of(Bad)


def test_two_fields_of_one_name_are_refused() -> None:
    @dataclasses.dataclass
    class First:
        mode: Literal["a", "b"] = "a"

    @dataclasses.dataclass
    class Second:
        mode: str = ""

    with pytest.raises(ValueError, match="mode"):
        options_of(First, Second)
