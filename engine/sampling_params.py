"""How the tokens of a request are chosen. Text-level options (stop strings) stay in the server."""

from __future__ import annotations

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Checked by the server against the limits of the API; the engine trusts it.

    Sampling is counter-based: token j of choice c is a function of (seed, c, j) and the logits alone.
    """

    max_tokens: int
    """Output tokens; 0: compute the prompt only."""
    min_tokens: int = 0
    """Stop tokens are not sampled before that many output tokens."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0: off."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    """Added to the logits of token ids, each in 0..vocab_size-1."""
    seed: int = 0
    """int64; the server draws one where the client gave none."""
    stop_token_ids: tuple[int, ...] = ()
    """Besides the model's end-of-sequence tokens."""
    ignore_eos: bool = False
    """End-of-sequence tokens are sampled like others; `stop_token_ids` still stop."""
    num_logprobs: int | None = None
    """Top log-probabilities returned per output token besides the chosen one's; None: none at all."""
    num_prompt_logprobs: int | None = None
    """The same for every prompt token but the first."""
