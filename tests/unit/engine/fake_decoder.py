"""A decoder whose next token tells whether every slot, table, copy and position was right."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from engine.layers.layer_gate import OPEN_GATE, LayerGate
from kernels.attention.base import AttentionMetadata

MODULUS = 65521


@dataclasses.dataclass(frozen=True)
class FakeConfig:
    vocab_size: int = 101
    num_layers: int = 2
    num_kv_heads: int = 1
    head_dim: int = 2


def expected_state(token_ids: Iterable[int]) -> int:
    """What the decoder computes at the last of these tokens, from the tokens alone."""
    return sum((token + 7) * (3 * position * position + position + 3) for position, token in enumerate(token_ids)) % (
        MODULUS
    )


def expected_token(token_ids: Iterable[int], vocab_size: int = 101) -> int:
    """The greedy token after these."""
    return expected_state(token_ids) % vocab_size


def expected_tokens(prompt: Sequence[int], count: int) -> list[int]:
    """The greedy continuation."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(expected_token(tokens))
    return tokens[len(prompt) :]


class FakeDecoder:
    """Stores tokens and positions in the cache of its last layer and folds what it reads back through the tables."""

    def __init__(self, config: FakeConfig | None = None, spoil: Callable[[Tensor], Tensor] | None = None) -> None:
        self.config = config or FakeConfig()
        self.dtype = torch.float32
        self.logits_rows: list[int] = []
        """Rows of each call of `logits`."""
        self._spoil = spoil

    def forward(
        self, token_ids: Tensor, kv_cache: Tensor, metadata: AttentionMetadata, gate: LayerGate = OPEN_GATE
    ) -> Tensor:
        for layer in gate.gated_layers:
            gate.pass_layer(layer)
        last_layer = kv_cache[:, -1]
        block_size = last_layer.shape[2]
        for values, kind in ((token_ids, 0), (metadata.positions, 1)):
            places = (metadata.slot_mapping // block_size, kind, metadata.slot_mapping % block_size)
            last_layer[places] = values[:, None, None].to(kv_cache.dtype).expand(-1, *last_layer.shape[3:])
        states, start = [], 0
        for index, (query_len, context_len) in enumerate(zip(metadata.query_lens, metadata.context_lens, strict=True)):
            blocks = last_layer[metadata.block_tables[index]][..., 0, 0]
            tokens = blocks[:, 0].reshape(-1)[:context_len].long()
            positions = blocks[:, 1].reshape(-1)[:context_len].long()
            state = ((tokens + 7) * (3 * positions * positions + positions + 3)).cumsum(0) % MODULUS
            states.append(state[context_len - query_len :])
            start += query_len
        assert start == len(token_ids) == metadata.num_tokens
        return torch.cat(states)[:, None].float()

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, V]: 0 at state mod V, falling by 0.1 from there, wrapping around."""
        self.logits_rows.append(len(hidden))
        size = self.config.vocab_size
        steps = (torch.arange(size) - hidden.long() % size) % size
        logits = steps * -0.1
        return self._spoil(logits) if self._spoil else logits


@dataclasses.dataclass(frozen=True)
class FakeModel:
    """In the place of engine.weights.LoadedModel."""

    decoder: FakeDecoder

    @property
    def config(self) -> FakeConfig:
        return self.decoder.config
