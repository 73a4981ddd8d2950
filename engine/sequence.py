"""The token ids of one choice: the prompt and what was sampled, and the hashes of its full blocks."""

from __future__ import annotations

import copy

import numpy as np
import numpy.typing as npt

from engine.sampling_params import SamplingParams
from scheduler.block_hash import chain_hash, root_hash
from scheduler.request import BlockHash

TokenIds = npt.NDArray[np.int32]


class Sequence:
    """Owned by EngineCore, read by the runner and the sampler; only `append` changes it.

    Invariant: `token_ids[:num_tokens]` is the prompt followed by the output; the first
    `num_hashed_blocks` blocks are hashed.
    """

    def __init__(
        self,
        request_id: str,
        choice: int,
        prompt_token_ids: tuple[int, ...],
        sampling: SamplingParams,
        stop_token_ids: frozenset[int],
        block_size: int,
        cache_salt: str = "",
    ) -> None:
        self.request_id = request_id
        self.choice = choice
        self.sampling = sampling
        self.stop_token_ids = stop_token_ids
        """Every token that ends it: the model's end-of-sequence tokens unless ignored, and the request's own."""
        self.num_prompt_tokens = len(prompt_token_ids)
        self.num_tokens = self.num_prompt_tokens
        self._tokens: TokenIds = np.empty(self.num_prompt_tokens + sampling.max_tokens, dtype=np.int32)
        self._tokens[: self.num_prompt_tokens] = prompt_token_ids
        self._block_size = block_size
        self._parent_hash = root_hash(cache_salt)
        self.num_hashed_blocks = 0

    def fork(self, request_id: str, choice: int) -> Sequence:
        """Another choice of the same prompt, before any output: neither tokens nor hashes are computed again."""
        assert self.num_output_tokens == 0, f"{self.request_id} has output, a fork would share it"
        other = copy.copy(self)
        other.request_id = request_id
        other.choice = choice
        other._tokens = np.empty_like(self._tokens)
        other._tokens[: self.num_tokens] = self.token_ids
        return other

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def token_ids(self) -> TokenIds:
        """[num_tokens] int32 view: the prompt, then the output."""
        return self._tokens[: self.num_tokens]

    @property
    def output_token_ids(self) -> TokenIds:
        """[num_output_tokens] int32 view."""
        return self._tokens[self.num_prompt_tokens : self.num_tokens]

    def append(self, token_id: int) -> None:
        """Add a sampled token."""
        self._tokens[self.num_tokens] = token_id
        self.num_tokens += 1

    def hash_full_blocks(self, num_computed_tokens: int) -> tuple[BlockHash, ...]:
        """Hashes of the blocks that are full at `num_computed_tokens` and were not hashed before, in order."""
        num_full_blocks = num_computed_tokens // self._block_size
        if num_full_blocks <= self.num_hashed_blocks:
            return ()  # nearly every decode
        hashes: list[BlockHash] = []
        for index in range(self.num_hashed_blocks, num_full_blocks):
            block = self._tokens[index * self._block_size : (index + 1) * self._block_size]
            self._parent_hash = chain_hash(self._parent_hash, block.tobytes())
            hashes.append(self._parent_hash)
        self.num_hashed_blocks += len(hashes)
        return tuple(hashes)
