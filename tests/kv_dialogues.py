"""Requests that share prefixes, what a server without tiers answers to them, and asking them in every manner.

An answer is the text, why it ended and the log-probability of each token: of a wrong block in the cache the last tell
long before another token is chosen. On native kernels a row's bits depend on no other row, so they must be equal, not
near.
"""

from __future__ import annotations

import dataclasses
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai

from tests.tiny_model import CORPUS, VOCAB_SIZE

MODEL = "tiny"
MAX_CHOICES = 3
ANSWER_TOKENS = 20
REQUEST_S = 60.0
"""No request takes longer, whatever happens to the server."""
CLASSES = ("realtime", "interactive", "standard", "batch")


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """What is asked; a chat or, with token ids, a completion."""

    messages: tuple[tuple[str, str], ...] = ()
    """Role and content."""
    prompt: tuple[int, ...] = ()
    temperature: float = 0.0
    seed: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Manner:
    """How it is asked; the answer does not depend on it."""

    slo_class: str = "standard"
    n: int = 1
    streams: bool = False
    leaves_after: int | None = None
    """Chunks of the stream; None: it is read to its end."""
    cache_salt: str | None = None
    cache_key: str | None = None


@dataclasses.dataclass(slots=True)
class Choice:
    """One answer, or as much of it as has come."""

    text: str = ""
    finish_reason: str | None = None
    logprobs: list[float] = dataclasses.field(default_factory=list)

    def starts(self, whole: Choice) -> bool:
        """Whether this is the beginning of `whole`."""
        logprobs = whole.logprobs[: len(self.logprobs)]
        return whole.text.startswith(self.text) and logprobs == self.logprobs


@dataclasses.dataclass(slots=True)
class Answer:
    """By the index of the choice; a stream that was left has the beginnings."""

    choices: list[Choice]
    cached_by_tier: dict[str, int] | None = None
    """Prompt tokens; None: nobody says."""
    num_cached: int = 0
    num_prompt: int = 0


def open_client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=REQUEST_S)


def ask(client: openai.OpenAI, question: Question, manner: Manner) -> Answer:
    """The answer.

    Raises:
        openai.APIError, httpx.HTTPError: there is none.
    """
    extra: dict[str, Any] = {}
    if manner.cache_salt is not None:
        extra["cache_salt"] = manner.cache_salt
    if manner.cache_key is not None:
        extra["prompt_cache_key"] = manner.cache_key
    options: dict[str, Any] = {
        "model": MODEL, "max_tokens": ANSWER_TOKENS, "temperature": question.temperature, "seed": question.seed,
        "n": manner.n, "extra_headers": {"x-slo-class": manner.slo_class}, "extra_body": extra,
    }  # fmt: skip
    if manner.streams:
        options |= {"stream": True, "stream_options": {"include_usage": True}}
    made: Any
    if question.messages:
        messages: Any = [{"role": role, "content": content} for role, content in question.messages]
        made = client.chat.completions.create(messages=messages, logprobs=True, **options)
    else:
        made = client.completions.create(prompt=list(question.prompt), logprobs=0, **options)
    answer = Answer([Choice() for _ in range(manner.n)])
    if not manner.streams:
        _take(made, answer)
        return answer
    with made:
        for num_chunks, chunk in enumerate(made, start=1):
            _take(chunk, answer)
            if num_chunks == manner.leaves_after:
                break
    return answer


def _take(part: Any, answer: Answer) -> None:
    """A whole answer or a chunk of one, of either endpoint."""
    for found in part.choices:
        choice = answer.choices[found.index]
        message = getattr(found, "message", None) or getattr(found, "delta", None)
        choice.text += (found.text if message is None else message.content) or ""
        choice.finish_reason = found.finish_reason or choice.finish_reason
        if found.logprobs is not None and message is None:
            choice.logprobs += found.logprobs.token_logprobs
        elif found.logprobs is not None:
            choice.logprobs += [entry.logprob for entry in found.logprobs.content or ()]
    if part.usage is not None:
        details = part.usage.prompt_tokens_details
        answer.num_prompt = part.usage.prompt_tokens
        answer.num_cached = details.cached_tokens
        answer.cached_by_tier = getattr(details, "cached_tokens_by_tier", None)


def difference(answer: Answer, expected: Answer, manner: Manner) -> str | None:
    """In what an answer is not the one expected; None: it is."""
    for index, (choice, whole) in enumerate(zip(answer.choices, expected.choices, strict=False)):
        is_right = choice.starts(whole) if manner.leaves_after is not None else choice == whole
        if not is_right:
            return f"choice {index} is {choice}, expected was {whole}"
    if answer.cached_by_tier is not None and sum(answer.cached_by_tier.values()) != answer.num_cached:
        return f"{answer.num_cached} cached tokens, by tier {answer.cached_by_tier}"
    return None


def ask_reference(
    client: openai.OpenAI, num_dialogues: int, num_turns: int, num_documents: int, seed: int
) -> dict[Question, Answer]:
    """All questions with the answers of a server that computes each of them alone, the most popular first.

    Dialogues share three system prompts; documents, of up to 640 tokens, are asked about three times each. The last
    turn of a dialogue is asked once more by drawing tokens.
    """
    rng = random.Random(seed)
    systems = [_words(rng, 70) for _ in range(3)]
    answers: dict[Question, Answer] = {}

    def known(question: Question) -> Answer:
        answers[question] = ask(client, question, Manner(n=MAX_CHOICES, cache_salt=f"{rng.random()}"))
        return answers[question]

    for number in range(num_dialogues):
        messages: tuple[tuple[str, str], ...] = (("system", systems[number % 3]),)
        for _ in range(num_turns):
            messages += (("user", _words(rng, rng.randrange(4, 24))),)
            text = known(Question(messages)).choices[0].text
            messages += (("assistant", text),)
        known(Question(messages[:-1], temperature=0.9, seed=number))
        if number < num_documents:
            document = _tokens(rng, rng.randrange(200, 600))
            for _ in range(3):
                known(Question(prompt=document + _tokens(rng, rng.randrange(1, 40))))
    return answers


def _tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(3, VOCAB_SIZE) for _ in range(count))


def _words(rng: random.Random, count: int) -> str:
    words = " ".join(CORPUS).split()
    return " ".join(rng.choice(words) for _ in range(count))


def ask_all(client: openai.OpenAI, questions: list[tuple[Question, Manner]], num_threads: int) -> list[Answer]:
    """At once, as many as there are threads."""
    with ThreadPoolExecutor(num_threads) as pool:
        return list(pool.map(lambda asked: ask(client, *asked), questions))
