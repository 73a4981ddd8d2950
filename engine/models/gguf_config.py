"""What the metadata of GGUF files says of every family under the same keys, below the family's name.

Source: llama.cpp, gguf-py/gguf/constants.py.
"""

from __future__ import annotations

from engine.attention_kind import AttentionKind
from engine.config_fields import ConfigFields
from engine.gguf_file import GGUFFile
from engine.model_config import ModelConfig
from engine.model_error import UnsupportedModelError
from engine.models.rope_config import DEFAULT_THETA, read_gguf_scaling
from kernels.rotary import FrequencyDivisors, Rope

ROPE_DIVISORS = "rope_freqs.weight"


def read_gguf_decoder(file: GGUFFile, architecture: str, rope: Rope | None = None) -> ModelConfig:
    """A decoder with full attention in all layers; what metadata does not say (a tied head, biases, norms of heads)
    is read from which tensors are there.

    Args:
        architecture: `general.architecture`, before every key.
        rope: None: as `read_gguf_rope` reads it.

    Raises:
        ModelFileError: a value is missing, of another type or impossible.
        UnsupportedModelError: an option the decoder has not.
    """
    metadata = ConfigFields(file.header.metadata, file.name)
    if metadata.optional(f"{architecture}.expert_count", int):
        raise UnsupportedModelError(f"{file.name}: a mixture of experts ({architecture}.expert_count) is not supported")
    head_dim = read_gguf_head_dim(metadata, architecture)
    num_heads = metadata.required(f"{architecture}.attention.head_count", int)
    eos_keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    eos_token_ids = [token for key in eos_keys for token in metadata.token_ids(f"tokenizer.ggml.{key}")]
    vocab_size = file.shapes.get("token_embd.weight", (0,))[0]
    return ModelConfig(
        architecture=architecture,
        num_layers=metadata.required(f"{architecture}.block_count", int),
        hidden_size=metadata.required(f"{architecture}.embedding_length", int),
        num_heads=num_heads,
        num_kv_heads=metadata.with_default(f"{architecture}.attention.head_count_kv", int, num_heads),
        head_dim=head_dim,
        intermediate_size=metadata.required(f"{architecture}.feed_forward_length", int),
        vocab_size=vocab_size or metadata.required(f"{architecture}.vocab_size", int),
        max_position_tokens=metadata.required(f"{architecture}.context_length", int),
        rms_norm_eps=metadata.required(f"{architecture}.attention.layer_norm_rms_epsilon", float),
        attention_kinds=(AttentionKind(rope or read_gguf_rope(file, metadata, architecture, head_dim)),),
        has_head_norms="blk.0.attn_q_norm.weight" in file.shapes,
        tie_word_embeddings="output.weight" not in file.shapes,
        attention_bias="blk.0.attn_q.bias" in file.shapes,
        attention_output_bias="blk.0.attn_output.bias" in file.shapes,
        mlp_bias="blk.0.ffn_gate.bias" in file.shapes,
        eos_token_ids=tuple(dict.fromkeys(eos_token_ids)),
        bos_token_id=next(iter(metadata.token_ids("tokenizer.ggml.bos_token_id")), None),
    )


def read_gguf_head_dim(metadata: ConfigFields, architecture: str) -> int:
    """Dimensions of a head.

    Raises:
        UnsupportedModelError: values have others than keys.
    """
    num_heads = metadata.required(f"{architecture}.attention.head_count", int)
    hidden_size = metadata.required(f"{architecture}.embedding_length", int)
    head_dim = metadata.with_default(f"{architecture}.attention.key_length", int, hidden_size // max(num_heads, 1))
    _check_whole(metadata, f"{architecture}.attention.value_length", head_dim)
    return head_dim


def read_gguf_rope(file: GGUFFile, metadata: ConfigFields, architecture: str, head_dim: int) -> Rope:
    """The rotation of whole heads; Llama 3's scaling is stored as one divisor per frequency.

    Raises:
        ModelFileError: a value is missing or of another type.
        UnsupportedModelError: another kind of scaling, or a part of the head is rotated.
    """
    _check_whole(metadata, f"{architecture}.rope.dimension_count", head_dim)
    theta = metadata.with_default(f"{architecture}.rope.freq_base", float, DEFAULT_THETA)
    scaling = read_gguf_scaling(metadata, architecture, ("none", "linear"))
    if ROPE_DIVISORS in file.shapes:
        return Rope(theta, head_dim, FrequencyDivisors(read_gguf_vector(file, ROPE_DIVISORS)))
    return Rope(theta, head_dim, scaling)


def read_gguf_vector(file: GGUFFile, tensor: str) -> tuple[float, ...]:
    """All numbers of a small tensor that is there."""
    return tuple(file.read_rows(tensor, 0, file.shapes[tensor][0]).flatten().tolist())


def read_gguf_window(metadata: ConfigFields, architecture: str) -> int | None:
    """The sliding window; a zero says that there is none."""
    return metadata.optional(f"{architecture}.attention.sliding_window", int) or None


def _check_whole(metadata: ConfigFields, key: str, head_dim: int) -> None:
    found = metadata.optional(key, int)
    if found not in (None, head_dim):
        raise UnsupportedModelError(f"{metadata.source}: {key} is {found}, only the head's {head_dim} is supported")
