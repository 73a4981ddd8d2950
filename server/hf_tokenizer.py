"""A tokenizer from a Hugging Face directory: tokenizer.json and the small files beside it.

transformers is imported only where tokenizer.json is missing (it costs two seconds); code of the model is never run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from server.tokenizer_parts import TokenizerError, TokenizerParts, checked_template, make_backend

_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MORE_NAMES = ("additional_special_tokens", "extra_special_tokens")


def load_hf_tokenizer(directory: Path) -> TokenizerParts:
    """Read the tokenizer and the chat template of a model directory.

    Raises:
        TokenizerError: there is none, or a file is not what it should be.
        OSError: a file cannot be read.
    """
    settings = {**_read_json(directory / "special_tokens_map.json"), **_read_json(directory / "tokenizer_config.json")}
    backend = _read_backend(directory)
    named = {name: text for name in _NAMES if (text := _token_text(settings.get(name))) is not None}
    _mark_special(backend, [*named.values(), *_more_special(settings)])
    return TokenizerParts(
        source=directory,
        backend=backend,
        named_tokens=named,
        eos_token_ids=_eos_token_ids(directory, backend, named.get("eos_token")),
        chat_template=_chat_template(directory, settings),
    )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path}: a JSON object was expected, it holds a {type(value).__name__}")
    return value


def _read_backend(directory: Path) -> Tokenizer:
    path = directory / "tokenizer.json"
    if path.is_file():
        return make_backend(path, path.read_text(encoding="utf-8"))
    from transformers import AutoTokenizer  # slow to import, seldom needed

    try:
        loaded = AutoTokenizer.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise TokenizerError(f"{directory}: no tokenizer.json, and transformers finds no tokenizer: {error}") from error
    backend = getattr(loaded, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise TokenizerError(
            f"{directory}: no tokenizer.json, and {type(loaded).__name__} has no fast form; "
            "save one with transformers' save_pretrained"
        )
    return backend


def _token_text(value: object) -> str | None:
    """A token is written as its text or as an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _more_special(settings: dict[str, Any]) -> Iterator[str]:
    for name in _MORE_NAMES:
        listed = settings.get(name) or ()
        for value in listed.values() if isinstance(listed, dict) else listed:
            if (text := _token_text(value)) is not None:
                yield text
    for value in (settings.get("added_tokens_decoder") or {}).values():
        if isinstance(value, dict) and value.get("special") and (text := _token_text(value)) is not None:
            yield text


def _mark_special(backend: Tokenizer, texts: list[str]) -> None:
    """Tokens that the configuration calls special are so also where tokenizer.json does not say it."""
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    missing = [text for text in dict.fromkeys(texts) if text not in special and backend.token_to_id(text) is not None]
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in missing])


def _eos_token_ids(directory: Path, backend: Tokenizer, eos_token: str | None) -> tuple[int, ...]:
    """What generation_config.json (else config.json) lists, then the tokenizer's own."""
    listed = _read_json(directory / "generation_config.json").get("eos_token_id")
    if listed is None:
        listed = _read_json(directory / "config.json").get("eos_token_id")
    ids = list(listed) if isinstance(listed, list) else [listed]
    ids.append(backend.token_to_id(eos_token) if eos_token is not None else None)
    return tuple(dict.fromkeys(token_id for token_id in ids if isinstance(token_id, int)))


def _chat_template(directory: Path, settings: dict[str, Any]) -> str | None:
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    source, template = "tokenizer_config.json", settings.get("chat_template")
    if template is None:
        source = "chat_template.json"
        template = _read_json(directory / source).get("chat_template")
    if isinstance(template, list):  # named templates
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return checked_template(template, f"{directory / source}: chat_template")
