"""The Llama family: Llama 2 and 3, SmolLM2, and whatever else calls itself LlamaForCausalLM."""

from __future__ import annotations

from engine.config_fields import ConfigFields
from engine.gguf_file import GGUFFile
from engine.model_config import ModelConfig
from engine.model_error import UnsupportedModelError
from engine.models.rope_config import read_gguf_rope, read_hf_rope
from engine.models.tensor_names import TensorNames

NAME = "llama"
ROPE_DIVISORS = "rope_freqs.weight"
HF_NAMES = TensorNames(
    {
        "embedding": "model.embed_tokens.weight",
        "final_norm": "model.norm.weight",
        "head": "lm_head.weight",
        "layers.{layer}.attention_norm": "model.layers.{layer}.input_layernorm.weight",
        "layers.{layer}.query": "model.layers.{layer}.self_attn.q_proj.weight",
        "layers.{layer}.key": "model.layers.{layer}.self_attn.k_proj.weight",
        "layers.{layer}.value": "model.layers.{layer}.self_attn.v_proj.weight",
        "layers.{layer}.output": "model.layers.{layer}.self_attn.o_proj.weight",
        "layers.{layer}.query_bias": "model.layers.{layer}.self_attn.q_proj.bias",
        "layers.{layer}.key_bias": "model.layers.{layer}.self_attn.k_proj.bias",
        "layers.{layer}.value_bias": "model.layers.{layer}.self_attn.v_proj.bias",
        "layers.{layer}.output_bias": "model.layers.{layer}.self_attn.o_proj.bias",
        "layers.{layer}.mlp_norm": "model.layers.{layer}.post_attention_layernorm.weight",
        "layers.{layer}.gate": "model.layers.{layer}.mlp.gate_proj.weight",
        "layers.{layer}.up": "model.layers.{layer}.mlp.up_proj.weight",
        "layers.{layer}.down": "model.layers.{layer}.mlp.down_proj.weight",
        "layers.{layer}.gate_bias": "model.layers.{layer}.mlp.gate_proj.bias",
        "layers.{layer}.up_bias": "model.layers.{layer}.mlp.up_proj.bias",
        "layers.{layer}.down_bias": "model.layers.{layer}.mlp.down_proj.bias",
    },
    ignored=(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
)
GGUF_NAMES = TensorNames(
    {
        "embedding": "token_embd.weight",
        "final_norm": "output_norm.weight",
        "head": "output.weight",
        "layers.{layer}.attention_norm": "blk.{layer}.attn_norm.weight",
        "layers.{layer}.query": "blk.{layer}.attn_q.weight",
        "layers.{layer}.key": "blk.{layer}.attn_k.weight",
        "layers.{layer}.value": "blk.{layer}.attn_v.weight",
        "layers.{layer}.output": "blk.{layer}.attn_output.weight",
        "layers.{layer}.query_bias": "blk.{layer}.attn_q.bias",
        "layers.{layer}.key_bias": "blk.{layer}.attn_k.bias",
        "layers.{layer}.value_bias": "blk.{layer}.attn_v.bias",
        "layers.{layer}.output_bias": "blk.{layer}.attn_output.bias",
        "layers.{layer}.mlp_norm": "blk.{layer}.ffn_norm.weight",
        "layers.{layer}.gate": "blk.{layer}.ffn_gate.weight",
        "layers.{layer}.up": "blk.{layer}.ffn_up.weight",
        "layers.{layer}.down": "blk.{layer}.ffn_down.weight",
        "layers.{layer}.gate_bias": "blk.{layer}.ffn_gate.bias",
        "layers.{layer}.up_bias": "blk.{layer}.ffn_up.bias",
        "layers.{layer}.down_bias": "blk.{layer}.ffn_down.bias",
    },
    ignored=(r"rope_freqs\.weight", r"blk\.\d+\.attn_rot_embd\.weight"),
    has_interleaved_rotary_pairs=True,
)


def read_hf_config(config: ConfigFields) -> ModelConfig:
    """Of a config.json, with the defaults of transformers' LlamaConfig; the end tokens are the caller's.

    Raises:
        ModelFileError: a value is missing, of another type or impossible.
        UnsupportedModelError: an option the decoder has not.
    """
    activation = config.with_default("hidden_act", str, "silu")
    if activation != "silu":
        raise UnsupportedModelError(f"{config.source}: hidden_act is {activation!r}, only 'silu' is supported")
    if config.section("quantization_config") is not None:
        raise UnsupportedModelError(
            f"{config.source}: quantization_config is not supported; use plain weights or a GGUF file"
        )
    num_heads = config.required("num_attention_heads", int)
    hidden_size = config.required("hidden_size", int)
    max_position_tokens = config.with_default("max_position_embeddings", int, 2048)
    rope_theta, rope_scaling = read_hf_rope(config, max_position_tokens)
    has_attention_bias = config.with_default("attention_bias", bool, False)
    return ModelConfig(
        architecture=NAME,
        num_layers=config.required("num_hidden_layers", int),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=config.with_default("num_key_value_heads", int, num_heads),
        head_dim=config.with_default("head_dim", int, hidden_size // max(num_heads, 1)),
        intermediate_size=config.required("intermediate_size", int),
        vocab_size=config.required("vocab_size", int),
        max_position_tokens=max_position_tokens,
        rms_norm_eps=config.with_default("rms_norm_eps", float, 1e-6),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        tie_word_embeddings=config.with_default("tie_word_embeddings", bool, False),
        attention_bias=has_attention_bias,
        attention_output_bias=has_attention_bias,
        mlp_bias=config.with_default("mlp_bias", bool, False),
        eos_token_ids=config.token_ids("eos_token_id"),
        bos_token_id=next(iter(config.token_ids("bos_token_id")), None),
    )


def read_gguf_config(file: GGUFFile) -> ModelConfig:
    """Of a GGUF file's metadata; what it does not say (a tied head, biases) is read from which tensors are there.

    Raises:
        ModelFileError: a value is missing, of another type or impossible.
        UnsupportedModelError: an option the decoder has not.
    """
    metadata = ConfigFields(file.header.metadata, file.name)
    if metadata.optional("llama.expert_count", int):
        raise UnsupportedModelError(f"{file.name}: a mixture of experts (llama.expert_count) is not supported")
    num_heads = metadata.required("llama.attention.head_count", int)
    hidden_size = metadata.required("llama.embedding_length", int)
    head_dim = metadata.with_default("llama.attention.key_length", int, hidden_size // max(num_heads, 1))
    _check_head_dimensions(metadata, head_dim)
    divisors = file.shapes.get(ROPE_DIVISORS)
    rope_theta, rope_scaling = read_gguf_rope(
        metadata, NAME, None if divisors is None else file.read_rows(ROPE_DIVISORS, 0, divisors[0]).tolist()
    )
    eos_keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    eos_token_ids = [token for key in eos_keys for token in metadata.token_ids(f"tokenizer.ggml.{key}")]
    return ModelConfig(
        architecture=NAME,
        num_layers=metadata.required("llama.block_count", int),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=metadata.with_default("llama.attention.head_count_kv", int, num_heads),
        head_dim=head_dim,
        intermediate_size=metadata.required("llama.feed_forward_length", int),
        vocab_size=file.shapes.get("token_embd.weight", (0,))[0] or metadata.required("llama.vocab_size", int),
        max_position_tokens=metadata.required("llama.context_length", int),
        rms_norm_eps=metadata.required("llama.attention.layer_norm_rms_epsilon", float),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        tie_word_embeddings="output.weight" not in file.shapes,
        attention_bias="blk.0.attn_q.bias" in file.shapes,
        attention_output_bias="blk.0.attn_output.bias" in file.shapes,
        mlp_bias="blk.0.ffn_gate.bias" in file.shapes,
        eos_token_ids=tuple(dict.fromkeys(eos_token_ids)),
        bos_token_id=next(iter(metadata.token_ids("tokenizer.ggml.bos_token_id")), None),
    )


def _check_head_dimensions(metadata: ConfigFields, head_dim: int) -> None:
    for key in ("llama.attention.value_length", "llama.rope.dimension_count"):
        found = metadata.optional(key, int)
        if found not in (None, head_dim):
            raise UnsupportedModelError(f"{metadata.source}: {key} is {found}, only the head's {head_dim} is supported")
