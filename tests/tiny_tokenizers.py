"""Small tokenizers of each kind, made in milliseconds: as GGUF metadata, as parts, and ready to use."""

from __future__ import annotations

import functools
from pathlib import Path

from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from engine.gguf_header import GGUFValue
from server.gguf_tokenizer import TokenType, parts_from_metadata
from server.tokenizer import Tokenizer
from server.tokenizer_parts import TokenizerParts

CONTROL = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]")
"""Token ids 0 to 6 of every tokenizer here."""
UNK, BOS, EOS, IM_START, IM_END, INST, INST_END = range(7)
USER_DEFINED = ("<think>",)
CORPUS = (
    "the quick brown fox jumps over the lazy dog; the dog sleeps, the fox does not",
    "system user assistant You are helpful. What is the capital of France? It is Paris, don't you know",
    "def answer(question):\n    return 'hello world'\n\nfor index in range(10):\n    print(index)\n",
    "2024 1999 12345 über Größe naïve 漢字 漢字 한국어 😀 👨‍👩‍👧",
)
SOURCE = Path("tiny.gguf")


@functools.cache
def _trained() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Vocabulary and merges of a byte-level BPE of 420 tokens, control tokens first."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=[*CONTROL, *USER_DEFINED],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    vocab = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    names = tuple(name for name, _ in vocab)
    known = set(names)
    merges = []
    for name in names[len(CONTROL) + 1 + 256 :]:
        cut = next(cut for cut in range(1, len(name)) if name[:cut] in known and name[cut:] in known)
        merges.append(f"{name[:cut]} {name[cut:]}")
    return names, tuple(merges)


def gpt2_metadata(**changes: GGUFValue) -> dict[str, GGUFValue]:
    """Metadata of a byte-level BPE in the manner of SmolLM2; `changes` are keys below `tokenizer.ggml`."""
    tokens, merges = _trained()
    values: dict[str, GGUFValue] = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": list(tokens),
        "merges": list(merges),
        "token_type": _types(len(tokens)),
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "unknown_token_id": UNK,
        "add_bos_token": False,
    }
    return _prefixed(values | changes)


def spm_metadata(**changes: GGUFValue) -> dict[str, GGUFValue]:
    """Metadata of a SentencePiece BPE in the manner of Llama 2, with byte tokens."""
    pieces = {"▁": -1.0}
    pieces |= {character: -100.0 - index for index, character in enumerate("abcdefghijklmnopqrstuvwxyz.,</>|_")}
    words = ("he", "in", "er", "▁t", "▁the", "▁a", "ll", "hell", "hello", "▁hello", "or", "world", "ld", "wor", "▁w")
    pieces |= {word: -2.0 - index for index, word in enumerate((*words, "▁▁", "th", "im", "end"))}
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*CONTROL, *USER_DEFINED, *bytes_, *pieces]
    types = _types(len(tokens))
    first_byte = len(CONTROL) + len(USER_DEFINED)
    types[first_byte : first_byte + 256] = [TokenType.BYTE] * 256
    values: dict[str, GGUFValue] = {
        "model": "llama",
        "tokens": tokens,
        "scores": [0.0] * (first_byte + 256) + list(pieces.values()),
        "token_type": types,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "unknown_token_id": UNK,
    }
    return _prefixed(values | changes)


def _types(num_tokens: int) -> list[int]:
    types = [int(TokenType.NORMAL)] * num_tokens
    types[: len(CONTROL)] = [TokenType.UNKNOWN, *[TokenType.CONTROL] * (len(CONTROL) - 1)]
    types[len(CONTROL)] = TokenType.USER_DEFINED
    return types


def _prefixed(values: dict[str, GGUFValue]) -> dict[str, GGUFValue]:
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


def tiny_gpt2(**changes: GGUFValue) -> Tokenizer:
    return Tokenizer(parts_from_metadata(SOURCE, gpt2_metadata(**changes)))


def tiny_spm(**changes: GGUFValue) -> Tokenizer:
    return Tokenizer(parts_from_metadata(SOURCE, spm_metadata(**changes)))


def tiny_word_piece() -> Tokenizer:
    """A vocabulary whose tokens are no bytes: only its decoder knows where spaces go."""
    names = ["[UNK]", "[SEP]", "the", "fox", "es", "##es", "##ing", "jump", ","]
    backend = Backend(models.WordPiece({name: index for index, name in enumerate(names)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens([AddedToken("[SEP]", special=True)])
    return Tokenizer(TokenizerParts(SOURCE, backend, {}, (1,), None))
