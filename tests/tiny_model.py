"""A small random Llama in the Hugging Face layout: made in a second, the same bytes each time, no download.

Its tokenizer is a byte-level BPE in the manner of SmolLM2 (ChatML control tokens, any text round-trips). Its weights
are drawn wide enough that logits are not flat: greedy decoding does not hang on rounding.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB_SIZE = 400
TINY_OPTIONS: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
"""Fields of transformers' configurations that every tiny model has, of whatever family."""
ENDOFTEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (ENDOFTEXT, IM_START, IM_END)
"""Token ids 0, 1, 2."""
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CORPUS = (
    "system user assistant You are a helpful assistant. What is the capital of France? The capital is Paris.",
    "Once upon a time there was a small river that turned a wheel, and the wheel turned a stone that ground the grain.",
    "The water that the channel brings is the water that the turbine needs, when it needs it.",
    "def answer(question: str) -> str:\n    return 'hello world'\n\nfor index in range(10):\n    print(index)\n",
    "Tell me a story about the sea. Write one sentence. Count from one to ten. Explain why the sky is blue.",
)


def make_tiny_llama(directory: Path, *, seed: int = 0, **config_overrides: Any) -> Path:
    """Write config.json, generation_config.json, model.safetensors, tokenizer.json and tokenizer_config.json.

    Args:
        directory: made where it does not exist.
        seed: of the weights.
        config_overrides: fields of transformers' LlamaConfig.

    Returns:
        `directory`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    model = make_llama_model(seed, **config_overrides)
    model.save_pretrained(directory)
    _write_tokenizer(directory, model.config.max_position_embeddings)
    return directory


def make_llama_model(seed: int = 0, **config_overrides: Any) -> LlamaForCausalLM:
    """The model itself, float32, eval mode; the caller's random state is left alone."""
    options = TINY_OPTIONS | config_overrides
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(**options)).eval()
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):  # made as ones and zeros, which would hide a mix-up
                parameter.data += 0.2 * torch.randn_like(parameter)
    return model


def _write_tokenizer(directory: Path, model_max_length: int) -> None:
    make_tokenizer().save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": IM_START,
        "eos_token": IM_END,
        "unk_token": ENDOFTEXT,
        "pad_token": IM_END,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": model_max_length,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))


def make_tokenizer() -> Tokenizer:
    """A byte-level BPE of `VOCAB_SIZE` tokens: the control tokens, the 256 bytes, merges learnt from `CORPUS`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer
