"""POST /v1/completions behind the seam of `server.endpoint`."""

from __future__ import annotations

from typing import cast

from engine.messages import Ready
from server.answer import AnswerWriter, Envelope
from server.completion_writer import CompletionWriter
from server.errors import invalid_request
from server.generation_plan import GenerationPlan
from server.protocol.completions import CompletionRequest, Prompts
from server.queue_places import CHARS_PER_TOKEN
from server.sampling_options import check_token_ids, fit_max_tokens, prompt_too_long, sampling_params
from server.service import Service
from server.tokenizer import PromptTooLong


class CompletionEndpoint:
    """Prompts are texts, in which special tokens' texts are those tokens, or lists of token ids."""

    body_type = CompletionRequest
    id_prefix = "cmpl-"

    def num_choices(self, body: CompletionRequest) -> int:
        return len(_prompts(body)) * body.num_choices_per_prompt

    def estimate_tokens(self, body: CompletionRequest) -> int:
        sizes = (len(p) // CHARS_PER_TOKEN if isinstance(p, str) else len(p) for p in _prompts(body))
        return sum(sizes)

    def check(self, body: CompletionRequest, ready: Ready, service: Service) -> None:
        check_token_ids(body, ready.vocab_size)
        num_choices, limit = self.num_choices(body), service.config.max_choices
        if num_choices > limit:
            raise invalid_request(
                f"{len(_prompts(body))} prompts times n make {num_choices} choices, at most {limit}", "n"
            )
        for prompt in _prompts(body):
            if not isinstance(prompt, str):
                fit_max_tokens(body.asked_max_tokens, len(prompt), ready, "prompt")  # before millions are looked at
                _check_ids(prompt, ready.vocab_size)

    async def plan(self, body: CompletionRequest, ready: Ready, service: Service) -> GenerationPlan:
        prompts = tuple([await self._encode(prompt, body, ready, service) for prompt in _prompts(body)])
        longest = max(len(prompt) for prompt in prompts)
        max_tokens = fit_max_tokens(body.asked_max_tokens, longest, ready, "prompt")
        scores_prompt = body.echoes and body.logprobs is not None
        is_text = isinstance(_prompts(body)[0], str)
        return GenerationPlan(
            prompts=prompts,
            n=body.num_choices_per_prompt,
            sampling=sampling_params(
                body, max_tokens, body.logprobs, body.logprobs if scores_prompt else None, ready.vocab_size
            ),
            stop_strings=body.stop_strings,
            includes_stop=bool(body.include_stop_str_in_output),
            skips_special_tokens=body.skip_special_tokens is not False,
            continues_prompt=True,
            echoed_texts=await self._echo(body, prompts, service) if body.echoes else None,
            num_hidden_tokens=int(is_text and service.tokenizer.adds_bos and body.add_special_tokens is not False),
            cache_salt=body.cache_salt or "",
            retention=body.retention,
            streams=bool(body.stream),
            includes_usage=body.includes_usage,
            has_continuous_usage=body.has_continuous_usage,
            returns_token_ids=bool(body.return_token_ids),
        )

    async def _encode(
        self, prompt: str | list[int], body: CompletionRequest, ready: Ready, service: Service
    ) -> tuple[int, ...]:
        if not isinstance(prompt, str):
            return tuple(prompt)
        try:
            ids = await service.text.encode(
                prompt,
                add_special_tokens=body.add_special_tokens is not False,
                parse_special=True,
                max_tokens=ready.max_model_len,
            )
        except PromptTooLong as error:
            raise prompt_too_long(error, body.asked_max_tokens, "prompt") from None
        if not ids:
            raise invalid_request("the tokenizer makes no token of this prompt", "prompt")
        return tuple(ids)

    async def _echo(
        self, body: CompletionRequest, prompts: tuple[tuple[int, ...], ...], service: Service
    ) -> tuple[str, ...]:
        return tuple(
            [
                given if isinstance(given, str) else await service.text.decode(ids, skip_special_tokens=False)
                for given, ids in zip(_prompts(body), prompts, strict=True)
            ]
        )

    def writer(self, envelope: Envelope, plan: GenerationPlan, service: Service) -> AnswerWriter:
        return CompletionWriter(envelope, plan, service.tokenizer)


def _prompts(body: CompletionRequest) -> Prompts:
    return cast("Prompts", body.prompt)


def _check_ids(ids: list[int], vocab_size: int) -> None:
    lowest, highest = min(ids), max(ids)
    if lowest < 0 or highest >= vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise invalid_request(f"prompt has the token id {wrong}, it must be in 0..{vocab_size - 1}", "prompt")
