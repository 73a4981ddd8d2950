"""Tensor names that most families share, by file format; a family changes what it calls otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from engine.models.tensor_names import TensorNames

_HF_MODULES = {
    "attention_norm": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "query_norm": "self_attn.q_norm",
    "key_norm": "self_attn.k_norm",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_GGUF_MODULES = {
    "attention_norm": "attn_norm",
    "query": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "output": "attn_output",
    "query_norm": "attn_q_norm",
    "key_norm": "attn_k_norm",
    "post_attention_norm": "post_attention_norm",
    "mlp_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "post_mlp_norm": "post_ffw_norm",
}
_NONE: Mapping[str, str] = MappingProxyType({})


def hf_names(changes: Mapping[str, str] = _NONE, *, norm_offset: float = 0.0) -> TensorNames:
    """Of safetensors files.

    Args:
        changes: modules below a layer, by our name of the part.
        norm_offset: see `TensorNames`.
    """
    top = {"embedding": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "head": "lm_head.weight"}
    layers = _layer_patterns("model.layers.{layer}.", _HF_MODULES | dict(changes))
    return TensorNames(
        top | layers, ignored=(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",), norm_offset=norm_offset
    )


def gguf_names(changes: Mapping[str, str] = _NONE, *, has_interleaved_rotary_pairs: bool = False) -> TensorNames:
    """Of GGUF files; arguments as in `hf_names` and `TensorNames`."""
    top = {"embedding": "token_embd.weight", "final_norm": "output_norm.weight", "head": "output.weight"}
    return TensorNames(
        top | _layer_patterns("blk.{layer}.", _GGUF_MODULES | dict(changes)),
        ignored=(r"rope_freqs\.weight", r"rope_factors_(long|short)\.weight", r"blk\.\d+\.attn_rot_embd\.weight"),
        has_interleaved_rotary_pairs=has_interleaved_rotary_pairs,
    )


def _layer_patterns(prefix: str, modules: Mapping[str, str]) -> dict[str, str]:
    patterns = {f"layers.{{layer}}.{part}": f"{prefix}{module}.weight" for part, module in modules.items()}
    return patterns | {f"layers.{{layer}}.{part}_bias": f"{prefix}{module}.bias" for part, module in modules.items()}
