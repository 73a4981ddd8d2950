"""A conversation to prompt token ids, through the model's chat template."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jinja2

from server.special_tokens import unused_noncharacter
from server.template_sandbox import RenderTimeout, TemplateSandbox, literal_text, render_bounded
from server.tokenizer import PromptTooLong, Tokenizer, replace_surrogates

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
RESERVED_KWARGS = frozenset(
    {
        *("messages", "conversation", "tools", "documents", "add_generation_prompt", "continue_final_message"),
        *("tokenize", "chat_template", "return_dict", "return_tensors", "return_assistant_tokens_mask", "padding"),
        *("truncation", "max_length", "tokenizer_kwargs", "sanitize_control_tokens", "raise_exception"),
        *("strftime_now", "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
    }
)
"""Names that `chat_template_kwargs` may not set: the request's own fields and the functions of templates."""
_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
_MAX_DEPTH = 64
_MAX_ERROR_CHARS = 500
_RENDER_ERRORS = (
    *(jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError),
    *(RecursionError, MemoryError),
)
"""What running a template on unsuitable messages may raise; the sandbox lets it do nothing worse."""


class TemplateError(ValueError):
    """The conversation cannot be rendered; the client's mistake. `param` is the field of the request to name."""

    def __init__(self, message: str, param: str = "messages") -> None:
        super().__init__(message)
        self.param = param


@dataclasses.dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt as text, not yet as tokens."""

    text: str
    marker: str = ""
    """Stands inside every special token's text that a user wrote; empty: none did."""

    @property
    def plain_text(self) -> str:
        """The text as the model is meant to see it."""
        return self.text.replace(self.marker, "") if self.marker else self.text


class ChatTemplate:
    """The compiled chat template of a model.

    Special tokens in a prompt come from the template alone: their text in a message is encoded as plain text. Without
    such text the ids equal those of transformers' `apply_chat_template`. Methods may be called from any thread.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        source: str,
        *,
        render_timeout_s: float = 5.0,
        max_prompt_chars: int = 8_000_000,
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
    ) -> None:
        """Raises TemplateError: `source` is no valid template."""
        self._tokenizer = tokenizer
        self._render_timeout_s = render_timeout_s
        self._max_prompt_chars = max_prompt_chars
        self._sandbox = TemplateSandbox(now)
        try:
            self._template = self._sandbox.compile_checked(source)
            self._literals = literal_text(self._sandbox, source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"the chat template is malformed, line {error.lineno}: {error.message}") from error
        self._reserved = RESERVED_KWARGS | self._sandbox.globals.keys()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        kwargs: Mapping[str, Any],
        max_tokens: int | None = None,
    ) -> list[int]:
        """The prompt's token ids; arguments and errors as for `render_text` and `encode`."""
        prompt = self.render_text(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            kwargs=kwargs,
        )
        return self.encode(prompt, max_tokens=max_tokens)

    def render_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        kwargs: Mapping[str, Any],
    ) -> RenderedPrompt:
        """The prompt as text.

        Args:
            messages: as in OpenAI's API, plain values; content is a string, null or a list of text parts.
            add_generation_prompt: end with the head of an assistant's turn.
            continue_final_message: leave the last message open, for the model to go on with it.
            kwargs: variables for the template (`chat_template_kwargs`).

        Raises:
            TemplateError: see its message; among others, what the template itself raises.
        """
        if add_generation_prompt and continue_final_message:
            raise TemplateError(
                "add_generation_prompt and continue_final_message exclude each other: the prompt ends either with the "
                "head of a new turn or with the last message",
                "continue_final_message",
            )
        self._check_kwargs(kwargs)
        conversation, variables, marks = self._defuse(self._prepare(messages), kwargs)
        if continue_final_message:
            final = conversation[-1]
            conversation[-1] = {**final, "content": final["content"] + marks.tail + " "}
        text = self._run({**self._tokenizer.named_tokens, **variables}, conversation, add_generation_prompt)
        if continue_final_message:
            text = _cut_at_tail(text, final["content"], marks.tail)
        return RenderedPrompt(text, marks.inside if marks.is_used else "")

    def encode(self, prompt: RenderedPrompt, *, max_tokens: int | None = None) -> list[int]:
        """The token ids of a rendered prompt; no begin token but the template's own is added.

        Raises:
            PromptTooLong: there are more than `max_tokens`.
            TemplateError: a message spells a special token that the tokenizer cannot write as plain text.
        """
        if not prompt.marker:
            return self._encode(prompt.text, parse_special=True, max_tokens=max_tokens)
        self._tokenizer.check_length(prompt.plain_text, max_tokens)
        ids: list[int] = []
        for piece in self._tokenizer.special_tokens.split(prompt.text, prompt.marker):
            if isinstance(piece, int):
                ids.append(piece)
            elif ids:
                ids += self._checked(self._tokenizer.encode_continuation(piece))
            else:
                ids += self._checked(self._encode(piece, parse_special=False, max_tokens=max_tokens))
        if max_tokens is not None and len(ids) > max_tokens:
            raise PromptTooLong(len(ids), max_tokens, is_exact=True)
        return ids

    def _encode(self, text: str, *, parse_special: bool, max_tokens: int | None) -> list[int]:
        return self._tokenizer.encode(
            text, add_special_tokens=False, parse_special=parse_special, max_tokens=max_tokens
        )

    def _checked(self, plain_ids: list[int]) -> list[int]:
        """The ids of plain text: none of them is special, but for the one of unknown text."""
        found = self._tokenizer.special_token_ids.intersection(plain_ids) - {self._tokenizer.unk_token_id}
        if found:
            spelled = self._tokenizer.token_text(min(found))
            raise TemplateError(f"a message holds {spelled!r}, which this model's tokenizer cannot take as plain text")
        return plain_ids

    def _check_kwargs(self, kwargs: Mapping[str, Any]) -> None:
        for name in kwargs:
            if name in self._reserved or name.startswith("_"):
                raise TemplateError(
                    f"chat_template_kwargs may not set {name!r}: the name is reserved; leave it out",
                    "chat_template_kwargs",
                )

    def _prepare(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        if not messages:
            raise TemplateError("messages is empty; a conversation needs at least one message")
        return [self._prepare_message(index, message) for index, message in enumerate(messages)]

    def _prepare_message(self, index: int, message: Mapping[str, Any]) -> dict[str, Any]:
        """Without nulls and empty tool calls, the content as one string, in a role that the template knows."""
        role = message.get("role")
        if role not in ROLES:
            raise TemplateError(f"messages[{index}].role is {role!r}, known are {', '.join(ROLES)}")
        prepared = {key: value for key, value in message.items() if value is not None}
        if role == "developer" and "developer" not in self._literals:
            prepared["role"] = "system"
        prepared["content"] = _flatten(index, message.get("content"))
        if not prepared.get("tool_calls", True):
            del prepared["tool_calls"]
        reasoning = next((prepared[name] for name in _REASONING_FIELDS if name in prepared), None)
        return prepared if reasoning is None else {"thinking": reasoning, **prepared, "reasoning_content": reasoning}

    def _defuse(
        self, conversation: list[dict[str, Any]], kwargs: Mapping[str, Any]
    ) -> tuple[list[dict[str, Any]], dict[str, Any], _Marks]:
        """Special tokens in all that the client sent are marked; roles were checked and stay as they are."""
        values = [conversation, dict(kwargs)]
        texts = [self._literals, *_strings(values, 0)]
        inside = unused_noncharacter(texts)
        tail = unused_noncharacter(texts, inside or "")
        if inside is None or tail is None:
            raise TemplateError(
                "the messages use up the Unicode noncharacters U+FDD0 to U+FDEF; leave some of them out"
            )
        marks = _Marks(inside, tail)
        special = self._tokenizer.special_tokens

        def mark(text: str) -> str:
            clean = replace_surrogates(text)
            marked = special.defuse(clean, inside)
            marks.is_used |= len(marked) != len(clean)
            return marked

        def mark_key(key: str) -> str:
            return mark(key) if special.is_in(key) else key

        marked_conversation = [{**_map_strings(turn, mark, mark_key), "role": turn["role"]} for turn in conversation]
        return marked_conversation, _map_strings(dict(kwargs), mark, mark_key), marks

    def _run(self, variables: Mapping[str, Any], messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
        request = {
            "messages": messages,
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return render_bounded(
                self._sandbox,
                self._template,
                {**variables, **request},
                timeout_s=self._render_timeout_s,
                max_chars=self._max_prompt_chars,
            )
        except RenderTimeout as error:
            raise TemplateError(
                f"the chat template did not end within {self._render_timeout_s:g} s; send fewer messages"
            ) from error
        except _RENDER_ERRORS as error:
            said = str(error) if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: {error}"
            raise TemplateError(f"the chat template refuses the messages: {said[:_MAX_ERROR_CHARS]}") from error


@dataclasses.dataclass(slots=True)
class _Marks:
    """The noncharacters of one request."""

    inside: str
    tail: str
    """Behind the message that is to be continued."""
    is_used: bool = False


def _flatten(index: int, content: object) -> str:
    """Text parts become lines of one text: templates of text models take a string."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise TemplateError(f"messages[{index}].content must be a string, null or a list of text parts")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(text, str):
            raise TemplateError(f"messages[{index}].content holds a part of type {kind!r}; this model takes text only")
        texts.append(text)
    return "\n".join(texts)


def _cut_at_tail(text: str, content: str, tail: str) -> str:
    """The prompt up to the end of the last message; trimmed where the template trims messages."""
    place = text.rfind(tail)
    if place < 0 or content.strip() not in text:
        raise TemplateError(
            "continue_final_message: the chat template leaves out the last message, or a part of it",
            "continue_final_message",
        )
    return text[:place] if text.startswith(" ", place + 1) else text[:place].rstrip()


def _strings(value: Any, depth: int) -> Iterator[str]:
    """Every string in a value, keys included."""
    if depth > _MAX_DEPTH:
        raise TemplateError(f"the messages or chat_template_kwargs are nested more than {_MAX_DEPTH} deep")
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _strings(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item, depth + 1)


def _map_strings(value: Any, change: Callable[[str], str], change_key: Callable[[str], str]) -> Any:
    """A copy with every string changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change_key(str(key)): _map_strings(item, change, change_key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_strings(item, change, change_key) for item in value]
    return value
