"""langchain-openai and lm-eval against a real server, their results recomputed by transformers from the same weights.

Both packages are the extra `clients`; where one is absent its tests are skipped and say so.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from torch import Tensor

from tests.headrace_process import HeadraceProcess

MODEL, KEY = "org/tiny", "a-key"
MAX_MODEL_LEN = 1024
BOS_ID, EOS_ID = 1, 2
NUM_TOKENS = 24
TOLERANCE = 1e-4
"""Of a float32 log-probability; sums of `n` of them get `n` times as much."""


def _needs(module: str, package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        importlib.util.find_spec(module) is None,
        reason=f"{package} is not installed: python -m pip install -e '.[dev,clients]'",
    )


needs_langchain = _needs("langchain_openai", "langchain-openai")
needs_lm_eval = _needs("lm_eval", "lm-eval")


class Oracle:
    """transformers and tokenizers on the served directory, without a cache and without batches."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer
        from transformers import LlamaForCausalLM

        self._model = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self._tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def encode_chat(self, user: str) -> list[int]:
        return self.encode(f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n")

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    @torch.inference_mode()
    def logprobs(self, ids: Sequence[int]) -> Tensor:
        """[T, vocab]: row t is what follows token t."""
        return torch.log_softmax(self._model(torch.tensor([ids]), use_cache=False).logits[0], dim=-1)

    def greedy(self, ids: Sequence[int], num_tokens: int = NUM_TOKENS) -> list[int]:
        """The answer, up to an end token, which is left out."""
        answer: list[int] = []
        while len(answer) < num_tokens:
            token = int(self.logprobs([*ids, *answer])[-1].argmax())
            if token == EOS_ID:
                break
            answer.append(token)
        return answer

    def greedy_text(self, ids: Sequence[int], num_tokens: int = NUM_TOKENS) -> str:
        return self.decode(self.greedy(ids, num_tokens))

    def score(self, context: Sequence[int], continuation: Sequence[int]) -> tuple[float, bool]:
        """Log-likelihood of the continuation, and whether each token of it is the likeliest."""
        ids = [*context, *continuation]
        rows = self.logprobs(ids)[len(context) - 1 : -1]
        targets = torch.tensor(list(continuation))
        return float(rows.gather(1, targets[:, None]).sum()), bool((rows.argmax(dim=1) == targets).all())

    def score_rolling(self, ids: Sequence[int]) -> float:
        """Of a whole text: windows as long as the model takes beside one token of output, at least one of context."""
        window = MAX_MODEL_LEN - 2  # one place for the token before the first scored one, one for the output
        total, done = 0.0, 0
        while done < len(ids):
            end = min(done + window, len(ids))
            context = [BOS_ID] if done == 0 else ids[end - window - 1 : done]
            total += self.score(context, ids[done:end])[0]
            done = end
        return total


@dataclasses.dataclass(frozen=True, slots=True)
class Served:
    """A server that wants a key, and what its answers are checked against."""

    url: str
    path: Path
    oracle: Oracle


@pytest.fixture(scope="module")
def served(tiny_model_path: Path, cache_path: Path) -> Iterator[Served]:
    arguments = ("--served-model-name", MODEL, "--dtype", "float32", "--kv-cache-memory", "32MiB", "--api-key", KEY)
    with HeadraceProcess(str(tiny_model_path), *arguments, cache_path=cache_path) as process:
        yield Served(process.wait_ready(), tiny_model_path, Oracle(tiny_model_path))


# langchain-openai

USER = "Tell me a story about the sea."
QUESTIONS = ("What is the capital of France?", USER, "Count from one to ten.", "Explain why the sky is blue.")
PROMPTS = ("Once upon a time", "The water that the channel brings")


@pytest.fixture
def chat_model(served: Served) -> Iterator[Callable[..., Any]]:
    """ChatOpenAI with more options."""
    from langchain_openai import ChatOpenAI

    with httpx.Client() as client:
        yield lambda **options: ChatOpenAI(
            **_langchain_options(served) | {"http_client": client, "max_tokens": NUM_TOKENS} | options
        )


def _langchain_options(served: Served) -> dict[str, Any]:
    base_url = f"{served.url}/v1"
    return {"base_url": base_url, "api_key": KEY, "model": MODEL, "temperature": 0, "max_retries": 0, "timeout": 30}


@needs_langchain
def test_langchain_chat_is_invoked(chat_model: Callable[..., Any], served: Served) -> None:
    prompt = served.oracle.encode_chat(USER)
    answer = served.oracle.greedy(prompt)
    message = chat_model().invoke([("human", USER)])
    assert message.content == served.oracle.decode(answer) != ""
    assert message.response_metadata["model_name"] == MODEL
    assert message.response_metadata["finish_reason"] == ("length" if len(answer) == NUM_TOKENS else "stop")
    usage = message.usage_metadata
    assert usage["input_tokens"] == len(prompt)
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert len(answer) <= usage["output_tokens"] <= len(answer) + 1  # an end token is billed


@needs_langchain
def test_langchain_chat_is_streamed_with_usage(chat_model: Callable[..., Any], served: Served) -> None:
    model = chat_model(stream_usage=True)
    whole = model.invoke(USER)
    chunks = list(model.stream(USER))
    joined = chunks[0]
    for chunk in chunks[1:]:
        joined += chunk
    assert len([chunk for chunk in chunks if chunk.content]) > 3
    assert joined.content == served.oracle.greedy_text(served.oracle.encode_chat(USER))
    assert len([chunk for chunk in chunks if chunk.usage_metadata]) == 1
    for name in ("input_tokens", "output_tokens", "total_tokens"):
        assert joined.usage_metadata[name] == whole.usage_metadata[name]
    assert joined.response_metadata["finish_reason"] == whole.response_metadata["finish_reason"]


@needs_langchain
def test_langchain_batches_keep_their_order(chat_model: Callable[..., Any], served: Served) -> None:
    expected = [served.oracle.greedy_text(served.oracle.encode_chat(question)) for question in QUESTIONS]
    assert len(set(expected)) == len(QUESTIONS)
    assert [message.content for message in chat_model().batch(list(QUESTIONS))] == expected

    async def ask() -> list[Any]:
        async with httpx.AsyncClient() as client:
            answers: list[Any] = await chat_model(http_async_client=client).abatch(list(QUESTIONS))
            return answers

    assert [message.content for message in asyncio.run(ask())] == expected


@needs_langchain
def test_langchain_chat_stops(chat_model: Callable[..., Any], served: Served) -> None:
    full = served.oracle.greedy_text(served.oracle.encode_chat(USER))
    stop = full[4:7]
    for model in (chat_model(stop=[stop]), chat_model().bind(stop=[stop])):
        message = model.invoke(USER)
        assert message.content == full[: full.index(stop)]
        assert message.response_metadata["finish_reason"] == "stop"
        assert "".join(chunk.content for chunk in model.stream(USER)) == message.content


@needs_langchain
def test_langchain_chat_has_logprobs(chat_model: Callable[..., Any], served: Served) -> None:
    prompt = served.oracle.encode_chat(USER)
    answer = served.oracle.greedy(prompt, 8)
    rows = served.oracle.logprobs([*prompt, *answer])[len(prompt) - 1 : -1]
    model = chat_model(logprobs=True, top_logprobs=5, max_tokens=8)
    chunks = list(model.stream(USER))
    streamed = [
        entry for chunk in chunks for entry in (chunk.response_metadata.get("logprobs") or {"content": []})["content"]
    ]
    for entries in (model.invoke(USER).response_metadata["logprobs"]["content"], streamed):
        assert len(entries) >= len(answer) > 0
        for entry, token, row in zip(entries, answer, rows, strict=False):
            assert entry["logprob"] == pytest.approx(float(row[token]), abs=TOLERANCE)
            best = row.topk(5).values.tolist()
            assert [top["logprob"] for top in entry["top_logprobs"]] == pytest.approx(best, abs=TOLERANCE)


@needs_langchain
def test_langchain_knows_the_servers_errors(chat_model: Callable[..., Any]) -> None:
    """It reads the code and the status; each becomes an exception of its own."""
    import openai
    from langchain_core.exceptions import ContextOverflowError

    for attempt in (lambda model: model.invoke(USER), lambda model: list(model.stream(USER))):
        with pytest.raises(ContextOverflowError):
            attempt(chat_model(max_tokens=MAX_MODEL_LEN))
        with pytest.raises(openai.AuthenticationError):
            attempt(chat_model(api_key="another"))
        with pytest.raises(openai.NotFoundError):
            attempt(chat_model(model="org/none"))


@needs_langchain
def test_langchain_text_completions(served: Served) -> None:
    from langchain_openai import OpenAI

    ids = [served.oracle.encode(prompt) for prompt in PROMPTS]
    expected = [served.oracle.greedy_text(prompt_ids) for prompt_ids in ids]
    with httpx.Client() as client:
        options = _langchain_options(served) | {"http_client": client, "max_tokens": NUM_TOKENS}
        model = OpenAI(**options, logprobs=2)
        result = model.generate(list(PROMPTS))
        assert [generations[0].text for generations in result.generations] == expected
        assert result.llm_output["token_usage"]["prompt_tokens"] == sum(map(len, ids))
        for prompt, prompt_ids, text, (generation,) in zip(PROMPTS, ids, expected, result.generations, strict=True):
            assert "".join(model.stream(prompt)) == text
            answer = served.oracle.greedy(prompt_ids)
            rows = served.oracle.logprobs([*prompt_ids, *answer])[len(prompt_ids) - 1 : -1]
            logprobs = generation.generation_info["logprobs"]["token_logprobs"][: len(answer)]
            assert logprobs == pytest.approx(rows.max(dim=1).values.tolist(), abs=TOLERANCE)
        stop = expected[0][3:6]
        stopped = OpenAI(**options).invoke(PROMPTS[0], stop=[stop])
        assert stopped == expected[0][: expected[0].index(stop)]


# lm-eval

CONTEXTS = (
    "What is the capital of France?",
    "Once upon a time there was a small river",
    "The water that the channel brings is the water",
    "for index in range(10):",
    "Über Größe, 漢字 and 😀:",
)
CONTINUATIONS = (" The capital is Paris.", " that turned a wheel", " 漢", "\n    print(index)\n", " 7")


@pytest.fixture
def harness_model(served: Served, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A model of lm-eval by its name, with more options."""
    from lm_eval.api.registry import get_model

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")

    def make(name: str, route: str, **options: Any) -> Any:
        usual = {"model": MODEL, "base_url": f"{served.url}/v1/{route}", "max_retries": 1, "max_length": MAX_MODEL_LEN}
        return get_model(name)(**usual | options)

    return make


def _instances(kind: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, each, index) for index, each in enumerate(arguments)]


def _greedy_pair(oracle: Oracle) -> tuple[str, str]:
    """A text and the one token that greedy decoding puts after it, where that token is a text that is split there."""
    text = " ".join((*CONTEXTS, *QUESTIONS))
    for end in range(8, len(text)):
        context, ids = text[:end], oracle.encode(text[:end])
        token = oracle.greedy(ids, 1)
        if token and context == context.rstrip() and oracle.encode(context + oracle.decode(token)) == [*ids, *token]:
            return context, oracle.decode(token)
    raise AssertionError("no greedy token survives being written as text")


@needs_lm_eval
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="ids"),
        pytest.param({"batch_size": 4}, id="batches-of-ids"),
        pytest.param({"tokenized_requests": False}, id="text"),
        pytest.param({"tokenized_requests": False, "batch_size": 3}, id="batches-of-text"),
        pytest.param({"num_concurrent": 4, "batch_size": 2}, id="at-once"),
    ],
)
def test_lm_eval_loglikelihood(harness_model: Callable[..., Any], served: Served, options: dict[str, Any]) -> None:
    """What multiple-choice tasks ask: every continuation after every context, one that is greedy among them."""
    oracle = served.oracle
    pairs = [(context, continuation) for context in CONTEXTS for continuation in CONTINUATIONS]
    pairs.append(_greedy_pair(oracle))
    model = harness_model("local-completions", "completions", tokenizer=str(served.path), **options)
    results = model.loglikelihood(_instances("loglikelihood", pairs), disable_tqdm=True)
    assert len(results) == len(pairs)
    for (context, continuation), (logprob, is_greedy) in zip(pairs, results, strict=True):
        whole, num_context = oracle.encode(context + continuation), len(oracle.encode(context))
        expected, expected_greedy = oracle.score(whole[:num_context], whole[num_context:])
        assert logprob == pytest.approx(expected, abs=TOLERANCE * (len(whole) - num_context))
        assert is_greedy == expected_greedy
    assert results[-1][1] and not all(is_greedy for _, is_greedy in results)


@needs_lm_eval
def test_lm_eval_loglikelihood_is_that_of_a_request_for_no_token(
    harness_model: Callable[..., Any], served: Served
) -> None:
    """Case 23: lm-eval asks for one token of output and drops it; older ones ask for none."""
    model = harness_model("local-completions", "completions", tokenizer=str(served.path))
    ((logprob, _),) = model.loglikelihood(_instances("loglikelihood", [("", CONTINUATIONS[0])]), disable_tqdm=True)
    ids = [BOS_ID, *served.oracle.encode(CONTINUATIONS[0])]
    body = {"prompt": ids, "echo": True, "logprobs": 1, "max_tokens": 0, "temperature": 0, "seed": 1234}
    answer = httpx.post(f"{served.url}/v1/completions", json=body, headers={"authorization": f"Bearer {KEY}"}).json()
    choice = answer["choices"][0]
    assert len(choice["logprobs"]["token_logprobs"]) == len(ids)
    bound = TOLERANCE * len(ids)
    assert logprob == pytest.approx(sum(choice["logprobs"]["token_logprobs"][1:]), abs=bound)
    assert logprob == pytest.approx(served.oracle.score(ids[:1], ids[1:])[0], abs=bound)


@needs_lm_eval
def test_lm_eval_rolls_over_texts_longer_than_the_model(harness_model: Callable[..., Any], served: Served) -> None:
    """What perplexity tasks ask; the windows fill the model's length to the last token."""
    texts = [CONTEXTS[1], " ".join((*CONTEXTS, *QUESTIONS)) * 18]
    assert len(served.oracle.encode(texts[1])) > 1.5 * MAX_MODEL_LEN
    model = harness_model("local-completions", "completions", tokenizer=str(served.path))
    results = model.loglikelihood_rolling(_instances("loglikelihood_rolling", [(text,) for text in texts]), True)
    for text, result in zip(texts, results, strict=True):
        ids = served.oracle.encode(text)
        assert result == pytest.approx(served.oracle.score_rolling(ids), abs=TOLERANCE * len(ids))


def _until(text: str, stops: Sequence[str]) -> str:
    return text[: min((text.index(stop) for stop in stops if stop in text), default=len(text))]


@needs_lm_eval
@pytest.mark.parametrize("options", [{}, {"tokenized_requests": False}, {"num_concurrent": 3}], ids=str)
def test_lm_eval_generates_until(harness_model: Callable[..., Any], served: Served, options: dict[str, Any]) -> None:
    """With as many stop strings as its tasks have at most, six, to which it adds the end token's text."""
    texts = [served.oracle.greedy_text(served.oracle.encode(context)) for context in CONTEXTS]
    stops = ["\nclass", "\ndef", "\n#", "\nif", "\nprint", texts[0][3:6]]
    wanted = {"until": stops, "max_gen_toks": NUM_TOKENS, "do_sample": False, "temperature": 0.0}
    model = harness_model("local-completions", "completions", tokenizer=str(served.path), **options)
    requests = _instances("generate_until", [(context, wanted) for context in CONTEXTS])
    results = model.generate_until(requests, disable_tqdm=True)
    assert results == [_until(text, stops) for text in texts]
    assert results[0] != texts[0] and results[1:] != [""] * (len(CONTEXTS) - 1)


@needs_lm_eval
@pytest.mark.parametrize("options", [{}, {"num_concurrent": 3}], ids=str)
def test_lm_eval_chat_generates_until(
    harness_model: Callable[..., Any], served: Served, options: dict[str, Any]
) -> None:
    """The template is the server's: lm-eval sends messages."""
    texts = [served.oracle.greedy_text(served.oracle.encode_chat(question)) for question in QUESTIONS]
    stops = [texts[0][3:6]]
    model = harness_model("local-chat-completions", "chat/completions", eos_string="<|im_end|>", **options)
    chats = [model.apply_chat_template([{"role": "user", "content": question}]) for question in QUESTIONS]
    wanted = {"until": stops, "max_gen_toks": NUM_TOKENS, "do_sample": False}
    results = model.generate_until(_instances("generate_until", [(chat, wanted) for chat in chats]), disable_tqdm=True)
    assert results == [_until(text, stops) for text in texts]
    assert results[0] != texts[0]
