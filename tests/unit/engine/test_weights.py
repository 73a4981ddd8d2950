"""Loading a directory: what lies where, what it costs, and files that are not what they claim."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file, save_file

from engine.dtype import has_native_bfloat16, resolve_dtype
from engine.layers.layer_layout import ALIGNMENT_BYTES
from engine.layers.slab import Slab
from engine.model_error import ModelFileError, UnsupportedModelError
from engine.weights import LoadedModel, load_model
from kernels.rotary import LinearScaling, Llama3Scaling
from tests.tiny_gguf import write_gguf
from tests.tiny_model import make_llama_model

ROOT = Path(__file__).resolve().parents[3]
NORM = "model.layers.1.input_layernorm.weight"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    make_llama_model(seed=6).save_pretrained(tmp_path)
    return tmp_path


def load(directory: Path, dtype: str = "float32") -> LoadedModel:
    return load_model(str(directory), dtype, lambda _: None)


def edit_config(directory: Path, **values: Any) -> None:
    path = directory / "config.json"
    config = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def edit_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    path.unlink()
    save_file(tensors, path)


def test_the_matrices_of_a_layer_are_views_of_one_aligned_slab(directory: Path) -> None:
    weights = load(directory).decoder.weights
    stored = load_file(directory / "model.safetensors")
    for index, layer in enumerate(weights.layers):
        slab = layer.slab.part(0, layer.layout.num_bytes)
        assert slab.data_ptr() % ALIGNMENT_BYTES == 0 and slab.is_contiguous()
        matrices = layer.layout.matrices(layer.slab)
        name = f"model.layers.{index}."
        attention, mlp = f"{name}self_attn.", f"{name}mlp."
        for (matrix,), parts in (
            (matrices.qkv, [f"{attention}{kind}_proj.weight" for kind in "qkv"]),
            (matrices.output, [f"{attention}o_proj.weight"]),
            (matrices.gate_up, [f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight"]),
            (matrices.down, [f"{mlp}down_proj.weight"]),
        ):
            view = matrix.unpack()
            assert view.untyped_storage().data_ptr() == slab.untyped_storage().data_ptr()
            assert view.data_ptr() % ALIGNMENT_BYTES == 0
            assert torch.equal(view, torch.cat([stored[part] for part in parts]))


def test_a_slab_copied_elsewhere_multiplies_the_same(directory: Path) -> None:
    weights = load(directory).decoder.weights
    layout, slab = weights.layers[0].layout, weights.layers[0].slab
    own, copied = layout.matrices(slab), layout.matrices(Slab.whole(slab.part(0, layout.num_bytes).clone()))
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    assert own.qkv[0].data.data_ptr() != copied.qkv[0].data.data_ptr()
    assert torch.equal(own.qkv[0].linear(x), copied.qkv[0].linear(x))
    assert torch.equal(own.down[0].data, copied.down[0].data)


def test_weights_bytes_is_what_the_parameters_take(directory: Path) -> None:
    num_parameters = sum(tensor.numel() for tensor in load_file(directory / "model.safetensors").values())
    assert load(directory).weights_bytes == 4 * num_parameters  # this model's parts need no padding
    assert load(directory, "bfloat16").weights_bytes == 2 * num_parameters


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    make_llama_model(tie_word_embeddings=True).save_pretrained(tmp_path)
    weights = load(tmp_path).decoder.weights
    assert weights.head is weights.embedding
    edit_tensors(tmp_path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    assert load(tmp_path).weights_bytes == weights.num_bytes


def test_progress_rises_from_zero_to_one(directory: Path) -> None:
    fractions: list[float] = []
    load_model(str(directory), "float32", fractions.append)
    assert fractions[0] == 0 and fractions[-1] == 1 and fractions == sorted(fractions)
    assert len(set(fractions)) > 10


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_stored_half_precision_is_widened_exactly(directory: Path, stored: torch.dtype) -> None:
    edit_tensors(directory, lambda t: t.update({name: value.to(stored) for name, value in t.items()}))
    wanted = load_file(directory / "model.safetensors")["model.embed_tokens.weight"].float()
    assert torch.equal(load(directory).decoder.weights.embedding.unpack(), wanted)


def test_end_tokens_come_from_both_files(directory: Path) -> None:
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}))
    assert load(directory).config.eos_token_ids == (7, 2)
    (directory / "generation_config.json").unlink()
    assert load(directory).config.eos_token_ids == (2,)


OLD_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}


@pytest.mark.parametrize(
    ("values", "theta", "scaling"),
    [
        ({"rope_theta": 5000.0}, 5000.0, None),
        ({}, 10_000.0, None),
        ({"rope_theta": 7, "rope_scaling": {"type": "linear", "factor": 2}}, 7.0, LinearScaling(2.0)),
        ({"rope_theta": 7.0, "rope_scaling": {"rope_type": "default"}}, 7.0, None),
        ({"rope_theta": 500000.0, "rope_scaling": OLD_LLAMA3}, 500000.0, Llama3Scaling(8.0, 1.0, 4.0, 256)),
    ],
    ids=["theta", "nothing", "linear", "default", "llama3"],
)
def test_the_older_spelling_of_rope_is_read(
    directory: Path, values: dict[str, Any], theta: float, scaling: object
) -> None:
    edit_config(directory, rope_parameters=..., **values)
    rope = load(directory).config.attention_kinds[0].rope
    assert (rope.theta, rope.scaling) == (theta, scaling)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, UnsupportedModelError, "'Mamba.*known are LlamaForCausalLM"),
        ({"architectures": None}, ModelFileError, "architectures is None, expected a list"),
        ({"hidden_act": "gelu"}, UnsupportedModelError, "hidden_act is 'gelu', only 'silu'"),
        ({"quantization_config": {"quant_method": "awq"}}, UnsupportedModelError, "quantization_config"),
        ({"rope_parameters": {"rope_type": "yarn"}}, UnsupportedModelError, "'yarn'; supported are default, linear"),
        ({"rope_parameters": {"rope_type": "linear"}}, ModelFileError, "rope_parameters: factor is missing"),
        ({"partial_rotary_factor": 0.5}, UnsupportedModelError, "partial_rotary_factor is 0.5"),
        ({"num_hidden_layers": ...}, ModelFileError, "num_hidden_layers is missing"),
        ({"vocab_size": "big"}, ModelFileError, "vocab_size is 'big', expected int"),
        ({"hidden_size": True}, ModelFileError, "hidden_size is True, expected int"),
        ({"num_attention_heads": 0}, ModelFileError, "num_heads is 0"),
        ({"num_key_value_heads": 3}, ModelFileError, r"num_heads \(4\) must be a multiple of num_kv_heads \(3\)"),
        ({"max_position_embeddings": 0}, ModelFileError, "max_position_tokens is 0, it must be between 1"),
        ({"rope_parameters": ..., "rope_theta": 0.0}, ModelFileError, "rope_theta is 0.0, it must be positive"),
        ({"rope_parameters": {"rope_theta": 0.0}}, ModelFileError, "rope_theta is 0.0, it must be positive"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, ModelFileError, "factor is 0.0, it must be pos"),
        ({"rms_norm_eps": 0.0}, ModelFileError, "rms_norm_eps is 0.0, it must be positive"),
        ({"num_key_value_heads": 0}, ModelFileError, "num_kv_heads is 0, it must be between 1"),
        ({"head_dim": 15}, ModelFileError, "head_dim is 15, it must be even"),
        ({"num_hidden_layers": 3}, ModelFileError, r"9 tensors are missing: model\.layers\.2\..* and 4 more"),
        ({"num_hidden_layers": 1}, ModelFileError, r"9 tensors that llama .* has not: model\.layers\.1"),
        ({"vocab_size": 401}, ModelFileError, r"embed_tokens\.weight has shape \(400, 64\), expected \(401, 64\)"),
        ({"eos_token_id": "x"}, ModelFileError, "eos_token_id is 'x'"),
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_be_served_says_why(
    directory: Path, values: dict[str, Any], error: type[Exception], message: str
) -> None:
    edit_config(directory, **values)
    with pytest.raises(error, match=message) as caught:
        load(directory)
    assert str(directory) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda t: t.pop(NORM), ModelFileError, "1 tensors are missing: " + NORM),
        (lambda t: t.update({"extra": torch.ones(1)}), ModelFileError, "1 tensors .* has not: extra"),
        (lambda t: t.update({NORM: torch.ones(63)}), ModelFileError, r"has shape \(63,\), expected \(64,\)"),
        (lambda t: t.update({NORM: torch.ones(64, dtype=torch.int8)}), UnsupportedModelError, "stored as I8; sup"),
    ],
    ids=["missing", "extra", "shape", "type"],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_named(
    directory: Path, change: Callable[[dict[str, torch.Tensor]], Any], error: type[Exception], message: str
) -> None:
    edit_tensors(directory, change)
    with pytest.raises(error, match=message) as caught:
        load(directory)
    assert str(directory / "model.safetensors") in str(caught.value)


@pytest.mark.parametrize("keep", [0, 7, 100, 5000, -1])
def test_a_truncated_safetensors_file_is_refused(directory: Path, keep: int) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelFileError, match=r"model\.safetensors: truncated or damaged"):
        load(directory)


def test_a_directory_without_the_right_files_says_what_is_wanted(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    (directory / "pytorch_model.bin").write_bytes(b"a pickle")
    with pytest.raises(ModelFileError, match="never from pickles"):
        load(directory)
    for text in ("{", "[]", "\udcff"):
        (directory / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        with pytest.raises(ModelFileError, match=r"config\.json"):
            load(directory)
    (directory / "config.json").unlink()
    with pytest.raises(ModelFileError, match=r"config\.json: cannot be read"):
        load(directory)


def test_code_beside_a_model_is_never_run(directory: Path) -> None:
    marker = directory / "ran"
    (directory / "modeling_evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Evil: ...\n")
    edit_config(directory, auto_map={"AutoModelForCausalLM": "modeling_evil.Evil", "AutoConfig": "modeling_evil.Evil"})
    load(directory)
    assert not marker.exists()


def test_auto_is_bfloat16_only_where_the_processor_multiplies_it(tmp_path: Path) -> None:
    def cpu_info(text: str) -> Path:
        path = tmp_path / "cpuinfo"
        path.write_text(text)
        return path

    assert resolve_dtype("auto", tmp_path / "absent") == torch.float32
    assert not has_native_bfloat16(cpu_info("flags\t\t: fpu avx2 avx512f\n"), "x86_64")
    assert has_native_bfloat16(cpu_info("model name\t: bf\nflags\t\t: fpu avx512_bf16\n"), "x86_64")
    assert has_native_bfloat16(cpu_info("flags\t\t: amx_bf16 amx_tile\n"), "x86_64")
    assert has_native_bfloat16(cpu_info("Features\t: fp asimd bf16\n"), "aarch64")
    assert not has_native_bfloat16(cpu_info("Features\t: fp asimd\n"), "aarch64")
    assert resolve_dtype("float16") == torch.float16
    with pytest.raises(ValueError, match="dtype is 'int8', it must be one of auto, float32"):
        resolve_dtype("int8")


LOAD_AND_MEASURE = """
import sys, torch
from pathlib import Path
from engine.weights import load_model

def resident_bytes(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(key)))

path, dtype = sys.argv[1:]
torch.set_num_threads(1)
torch.ones(8, 8) @ torch.ones(8, 8)
before = resident_bytes("VmRSS:")
weights_bytes = load_model(path, dtype, lambda _: None).weights_bytes
print(weights_bytes, resident_bytes("VmHWM:") - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the resident set from /proc")
@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_loading_takes_less_than_1_3_times_the_final_size(tmp_path: Path, kind: str) -> None:
    """Peak resident set in a process of its own, pages of mapped files included."""
    model = make_llama_model(vocab_size=8192, hidden_size=1024, intermediate_size=2048, initializer_range=0.02)
    path = tmp_path
    if kind == "gguf":
        path = tmp_path / "model.gguf"
        write_gguf(path, model, GGMLQuantizationType.Q8_0)
    else:
        model.save_pretrained(path)
    command = [sys.executable, "-c", LOAD_AND_MEASURE, str(path), "bfloat16"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    weights_bytes, taken_bytes = map(int, result.stdout.split())
    assert weights_bytes == 2 * sum(parameter.numel() for parameter in model.parameters()) > 60e6
    assert weights_bytes < taken_bytes < 1.3 * weights_bytes
