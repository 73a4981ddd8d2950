"""POST /v1/chat/completions behind the seam of `server.endpoint`."""

from __future__ import annotations

from engine.messages import Ready
from server.answer import AnswerWriter, Envelope
from server.chat_writer import ChatWriter
from server.errors import invalid_request
from server.generation_plan import GenerationPlan
from server.protocol.chat import ChatRequest
from server.queue_places import CHARS_PER_TOKEN
from server.sampling_options import check_token_ids, fit_max_tokens, prompt_too_long, sampling_params
from server.service import Service
from server.tokenizer import PromptTooLong


class ChatEndpoint:
    """Messages become one prompt through the model's template."""

    body_type = ChatRequest
    id_prefix = "chatcmpl-"

    def num_choices(self, body: ChatRequest) -> int:
        return body.num_choices_per_prompt

    def estimate_tokens(self, body: ChatRequest) -> int:
        num_chars = sum(message.num_chars for message in body.messages)
        return num_chars // CHARS_PER_TOKEN

    def check(self, body: ChatRequest, ready: Ready, service: Service) -> None:
        check_token_ids(body, ready.vocab_size)
        if service.text.chat_template is None:
            raise invalid_request("the model has no chat template: use /v1/completions", "messages")
        if body.num_choices_per_prompt > service.config.max_choices:
            raise invalid_request(f"n is {body.num_choices_per_prompt}, the limit is {service.config.max_choices}", "n")

    async def plan(self, body: ChatRequest, ready: Ready, service: Service) -> GenerationPlan:
        try:
            prompt = await service.text.render(
                [message.for_template() for message in body.messages],
                add_generation_prompt=body.generates,
                continue_final_message=body.continues,
                kwargs=body.chat_template_kwargs or {},
                max_tokens=ready.max_model_len,
            )
        except PromptTooLong as error:
            raise prompt_too_long(error, body.asked_max_tokens or 1, "messages") from None
        if not prompt:
            raise invalid_request("the chat template makes an empty prompt of these messages", "messages")
        max_tokens = fit_max_tokens(body.asked_max_tokens, len(prompt), ready, "messages")
        return GenerationPlan(
            prompts=(tuple(prompt),),
            n=body.num_choices_per_prompt,
            sampling=sampling_params(body, max_tokens, body.num_logprobs, None, ready.vocab_size),
            stop_strings=body.stop_strings,
            includes_stop=bool(body.include_stop_str_in_output),
            skips_special_tokens=body.skip_special_tokens is not False,
            continues_prompt=body.continues,
            cache_salt=body.cache_salt or "",
            retention=body.retention,
            streams=bool(body.stream),
            includes_usage=body.includes_usage,
            has_continuous_usage=body.has_continuous_usage,
            returns_token_ids=bool(body.return_token_ids),
        )

    def writer(self, envelope: Envelope, plan: GenerationPlan, service: Service) -> AnswerWriter:
        return ChatWriter(envelope, plan, service.tokenizer)
