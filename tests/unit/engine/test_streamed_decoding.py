"""Streaming changes no bit: a step gives the hidden states and logits of the same step with all weights in place."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.models.decoder import Decoder
from engine.models.native_decoder import NativeDecoder
from engine.weights import load_model
from kernels.native_library import NativeLibrary
from offload.host_link import HostLink
from offload.link import TransferHandle
from offload.link_config import LinkConfig
from offload.transfer import Direction, Transfer
from offload.weight_streamer import WeightLoadError
from tests.fake_link import POISON
from tests.paged_decoding import PagedDecoding
from tests.streamed_model import StreamedModel, Streaming
from tests.tiny_gguf import write_gguf
from tests.tiny_model import VOCAB_SIZE, make_llama_model

NUM_LAYERS = 6
Step = Mapping[int, Sequence[int]]
"""Tokens of each sequence."""
TOKENS = torch.randint(0, VOCAB_SIZE, (200,), generator=torch.Generator().manual_seed(3)).tolist()
STEPS: tuple[Step, ...] = (
    {0: TOKENS[:20], 1: TOKENS[50:57]},
    {0: TOKENS[20:21], 2: TOKENS[100:109], 1: TOKENS[57:58]},
    {2: TOKENS[109:126], 0: TOKENS[21:22]},
    {0: TOKENS[22:23], 1: TOKENS[58:59], 2: TOKENS[126:127]},
    {3: TOKENS[50:60], 0: TOKENS[23:24]},  # sequence 1 was preempted and is computed again
    {0: TOKENS[24:25], 3: TOKENS[60:61]},
)
"""Prefill, a chunk beside decodes, decodes, a recomputation."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, how it is loaded, and what STEPS give without streaming."""

    path: Path
    dtype: str
    library: NativeLibrary | None
    decoder: Decoder | NativeDecoder
    expected: list[dict[int, Tensor]]

    @property
    def num_parts(self) -> int:
        """Where a slab may be cut, and 1."""
        return 4 if self.library is None else 5

    def stream(self, streaming: Streaming) -> StreamedModel:
        return StreamedModel(self.path, self.dtype, self.library, streaming)


def run(decoding: PagedDecoding, steps: Sequence[Step] = STEPS) -> list[dict[int, Tensor]]:
    return [decoding.step(step) for step in steps]


@pytest.fixture(scope="module", params=["torch", "native", "native_bfloat16"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """With unequal layers on native kernels."""
    path = tmp_path_factory.mktemp(request.param)
    model = make_llama_model(num_hidden_layers=NUM_LAYERS, attention_bias=request.param == "torch")
    library = None if request.param == "torch" else request.getfixturevalue("native_library")
    if request.param == "native":
        path /= "model.gguf"
        exceptions = {"layers.1.": Kind.Q8_0, "layers.3.mlp.down": Kind.F16, "layers.4.": Kind.F32}
        write_gguf(path, model, Kind.Q4_0, exceptions | {"layers.2.self_attn.k_proj": Kind.Q8_0})
    else:
        model.save_pretrained(path)
    dtype = {"torch": "float32", "native": "auto", "native_bfloat16": "bfloat16"}[request.param]
    decoder = load_model(str(path), dtype, lambda _: None, library=library).decoder
    return Case(path, dtype, library, decoder, run(PagedDecoding(decoder, num_blocks=24)))


def assert_same(case: Case, model: StreamedModel, actual: Sequence[dict[int, Tensor]], first: int = 0) -> None:
    for got, expected in zip(actual, case.expected[first:], strict=False):
        assert got.keys() == expected.keys()
        for sequence, hidden in got.items():
            assert hidden.isfinite().all()
            assert torch.equal(hidden, expected[sequence])
            assert torch.equal(model.decoder.logits(hidden), case.decoder.logits(expected[sequence]))


@pytest.mark.parametrize("num_slots", [1, 2, 3, 7])
def test_every_number_of_layers_and_slots(case: Case, num_slots: int) -> None:
    for k in range(NUM_LAYERS + 1):
        model = case.stream(Streaming(k, num_slots))
        assert len(model.weights.streamed_layers) == k
        for index, step in enumerate(STEPS):
            assert_same(case, model, [model.step(step)], index)
            if index:
                assert model.last_transfers.num_bytes == model.weights.step_bytes
                assert (model.weights.step_bytes > 0) == (k > num_slots)


@pytest.mark.parametrize("k", [0, 2, 5])
def test_layers_that_are_not_streamed_are_read_on_the_device_alone(case: Case, k: int) -> None:
    """The host's copies of all others are spoilt once they are not needed."""
    model = case.stream(Streaming(k))
    for layer in set(range(NUM_LAYERS)).difference(model.weights.streamed_layers):
        model.weights.slabs[layer].tail.fill_(0xDB)
        model.masters[layer].fill_(0xDB)
    assert_same(case, model, [model.step(step) for step in STEPS])


def test_layers_are_as_unequal_as_the_test_wants(case: Case) -> None:
    sizes = set(case.stream(Streaming(0)).layer_bytes)
    assert len(sizes) == (5 if case.dtype == "auto" else 1)


@given(data=st.data())
@settings(max_examples=20, deadline=None, derandomize=True)
def test_intervals_fractions_speeds_and_changes_between_steps(case: Case, data: st.DataObject) -> None:
    """Whatever the link's speed and the time that layers take: too slow, just right, far ahead."""
    streaming = Streaming(
        num_streamed=data.draw(st.integers(0, NUM_LAYERS), "k"),
        num_slots=data.draw(st.integers(1, 4), "slots"),
        num_parts=data.draw(st.integers(1, case.num_parts), "parts"),
        interval=data.draw(st.sampled_from([None, 1, 2, 4]), "interval"),
        bytes_per_s=data.draw(st.sampled_from([1e6, 1e7, 1e9]), "speed"),
        layer_s=data.draw(st.sampled_from([0.0, 1e-3, 1e-1]), "layer_s"),
    )
    model = case.stream(streaming)
    seen = set()
    for index, step in enumerate(STEPS):
        assert_same(case, model, [model.step(step)], index)
        seen.add(model.weights.num_streamed)
        model.weights.set_streamed(data.draw(st.integers(0, NUM_LAYERS), "new k"))
        model.check()
        if data.draw(st.booleans(), "wait"):
            model.link.advance_to_idle()


def test_k_goes_up_and_down_over_the_whole_range_while_a_sequence_decodes(case: Case) -> None:
    model = case.stream(Streaming(0, num_slots=2, layer_s=1e-4))
    reference = PagedDecoding(case.decoder, num_blocks=24)
    ks = itertools.chain(range(1, NUM_LAYERS + 1), range(NUM_LAYERS - 1, -1, -1))
    reached = {model.weights.num_streamed}
    for index, k in enumerate(ks):
        model.weights.set_streamed(k)
        for token in TOKENS[3 * index : 3 * index + 3]:
            expected, actual = reference.step({0: [token]}), model.step({0: [token]})
            assert torch.equal(actual[0], expected[0])
        model.link.advance_to_idle()
        reached.add(model.weights.num_streamed)
    model.step({1: TOKENS[:2]})
    assert model.weights.num_streamed == 0 and reached == set(range(NUM_LAYERS + 1))
    assert model.weights.streamed_layers == ()


def test_a_step_that_lost_its_weights_is_repeated_with_the_same_bits(case: Case) -> None:
    model = case.stream(Streaming(4, num_slots=1))
    results = [model.step(STEPS[0])]
    fail_next_copies(model)
    before = dict(model.decoding._lengths)
    with pytest.raises(WeightLoadError, match="the next one loads them again"):
        model.step(STEPS[1])
    model.decoding._lengths = before
    results.append(model.step(STEPS[1]))
    assert_same(case, model, results)


def fail_next_copies(model: StreamedModel) -> None:
    """Those under way now."""
    handles = [slot.handle for slot in model.weights._streamer._slots if slot.is_loading]
    assert handles
    for handle in handles:
        model.link.fail(handle, OSError("a fault"))


def test_the_model_is_larger_than_the_device(case: Case) -> None:
    """At least five of six layers are on the host always."""
    model = case.stream(Streaming(6, num_slots=1, min_streamed=5, num_kv_blocks=12))
    ledger = model.arena.ledger()
    assert ledger["kv"] + case.decoder.weights.num_bytes > model.arena.capacity_bytes - ledger["workspace"]
    assert_same(case, model, [model.step(step) for step in STEPS])
    with pytest.raises(ValueError, match="4 streamed layers: the plan has 5 to 6"):
        model.weights.set_streamed(4)


def test_kv_moves_into_the_place_of_weights_and_out_again(case: Case) -> None:
    """All blocks in use up to the border, at every k on the way up; then the border comes down and layers return."""
    model = case.stream(Streaming(0, num_slots=1, num_kv_blocks=8))
    for k in range(NUM_LAYERS + 1):
        model.weights.set_streamed(k)
        num_blocks = model.weights.num_kv_blocks
        model.start(num_blocks)
        reference = PagedDecoding(case.decoder, num_blocks)
        model.cache.region.fill_(float("nan"))  # whoever reads weights from here, or a block before it was written
        for index in range(num_blocks):
            tokens = {index: TOKENS[index % 100 : index % 100 + 16]}  # a sequence for every block
            expected, actual = reference.step(tokens), model.step(tokens)
            assert torch.equal(actual[index], expected[index])
    model.start(8)
    reference = PagedDecoding(case.decoder, 8)
    model.weights.set_streamed(0)
    for index in range(NUM_LAYERS + 1):
        model.link.advance_to_idle()
        tokens = {0: TOKENS[index : index + 1]}
        expected, actual = reference.step(tokens), model.step(tokens)
        assert torch.equal(actual[0], expected[0])
    assert model.weights.num_streamed == 0 and not model.weights.is_moving


class PoisoningLink(HostLink):
    """A real thread that copies; targets are poison from the moment they are asked for."""

    def __init__(self, bytes_per_s: float | None) -> None:
        caps = {} if bytes_per_s is None else {Direction.H2D: bytes_per_s}
        super().__init__(LinkConfig(1e9, 1e9), caps)

    def submit(self, transfer: Transfer, on_done: Callable[[TransferHandle], None] | None = None) -> TransferHandle:
        transfer.target.fill_(POISON)
        return super().submit(transfer, on_done)

    def advance(self, seconds: float) -> None:
        """Time goes by of itself."""


@pytest.mark.parametrize("bytes_per_s", [None, 3e8], ids=["fast", "slow"])
@pytest.mark.parametrize("num_slots", [1, 3])
def test_a_thread_that_really_copies_beside_computation(case: Case, bytes_per_s: float | None, num_slots: int) -> None:
    link = PoisoningLink(bytes_per_s)
    with contextlib.closing(link):
        streaming = Streaming(4, num_slots)
        model = StreamedModel(case.path, case.dtype, case.library, streaming, link=link)  # type: ignore[arg-type]
        for k in (4, 6, 5, 4, 6):
            model.start(24)
            model.weights.set_streamed(k)
            for index, step in enumerate(STEPS):
                assert_same(case, model, [model.step(step)], index)
        model.weights.drain()


@pytest.mark.parametrize("num_streamed", [2, 6])
def test_batch_invariant_torch(tmp_path: Path, num_streamed: int) -> None:
    make_llama_model(num_hidden_layers=NUM_LAYERS).save_pretrained(tmp_path)
    decoder = load_model(str(tmp_path), "float32", lambda _: None, batch_invariant=True).decoder
    expected = run(PagedDecoding(decoder, num_blocks=24))
    model = StreamedModel(tmp_path, "float32", None, Streaming(num_streamed), batch_invariant=True)
    for step, result in zip(STEPS, expected, strict=True):
        for sequence, hidden in model.step(step).items():
            assert torch.equal(hidden, result[sequence])
