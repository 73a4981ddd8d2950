"""The sandbox in which chat templates run: no way out of Jinja, and an end in time.

Behaves as transformers' apply_chat_template (same options, filters, functions and `{% generation %}` tag). On top of
Jinja's sandbox, which denies Python's internals and caps `range`: every turn of a loop and every macro call checks a
deadline, repetition and powers are capped, and `lipsum` is gone. What remains: one operation inside an expression (a
sort, or strings that are joined into ever longer ones) is not interrupted and may take memory. Users cannot write one:
only a template file can, and that is the operator's choice, like the weights beside it.
"""

from __future__ import annotations

import datetime
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_MAX_REPEATED_ITEMS = 1_000_000
_MAX_POWER_BITS = 4096


class RenderTimeout(jinja2.TemplateRuntimeError):
    """A template did not end in time."""


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """A Jinja environment for one chat template; templates may be rendered in several threads at once."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, now: Callable[[], datetime.datetime]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
        self._deadlines = threading.local()
        self.filters["tojson"] = _to_json
        del self.globals["lipsum"]
        self.globals.update(
            raise_exception=_raise_exception,
            strftime_now=lambda pattern: now().strftime(pattern),
            dict=_DictFactory(),
            namespace=_PlainNamespace,
        )

    def compile_checked(self, source: str) -> jinja2.Template:
        """Compile with a look at the clock in every loop and macro.

        Raises:
            jinja2.TemplateSyntaxError: the template is malformed.
        """
        tree = self.parse(source)
        bodies = [loop.body for loop in tree.find_all(nodes.For)]
        bodies += [macro.body for macro in tree.find_all(nodes.Macro)]
        bodies += [block.body for block in tree.find_all(nodes.CallBlock)]
        for body in bodies:
            check = nodes.Call(nodes.EnvironmentAttribute("check_deadline"), [], [], None, None)
            body.insert(0, nodes.Output([check]).set_lineno(1))
        return jinja2.Template.from_code(self, self.compile(tree), self.make_globals(None))

    @contextmanager
    def deadline(self, deadline_s: float) -> Iterator[None]:
        """Within it `check_deadline` raises from `deadline_s` (time.monotonic) on, in this thread."""
        self._deadlines.at_s = deadline_s
        try:
            yield
        finally:
            del self._deadlines.at_s

    def check_deadline(self) -> str:
        """Nothing, as text; called by the compiled template. Raises RenderTimeout."""
        if time.monotonic() > self._deadlines.at_s:
            raise RenderTimeout("it did not end in time")
        return ""

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            _check_power(left, right)
        else:
            _check_repetition(left, right)
        return super().call_binop(context, operator, left, right)


def _check_power(base: Any, exponent: Any) -> None:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > _MAX_POWER_BITS:
        raise jinja2.exceptions.SecurityError(f"a power of more than {_MAX_POWER_BITS} bits")


def _check_repetition(left: Any, right: Any) -> None:
    for repeated, count in ((left, right), (right, left)):
        if isinstance(repeated, str | list | tuple) and isinstance(count, int):
            num_items = len(repeated) * count
            if num_items > _MAX_REPEATED_ITEMS:
                raise jinja2.exceptions.SecurityError(f"a repetition to {num_items} > {_MAX_REPEATED_ITEMS} items")


def _raise_exception(message: object) -> None:
    raise jinja2.TemplateError(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own, without HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _DictFactory:
    """`dict(...)` in a template without the attributes of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)


class _PlainNamespace(Namespace):
    """`namespace(...)` that holds no attribute with an underscore in front."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _check_attribute(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: str) -> None:
    if name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"{name!r} is no name for an attribute of a namespace")


class _GenerationTag(Extension):
    """`{% generation %}` marks what the model wrote, for training; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012  (as the base class declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def literal_text(sandbox: TemplateSandbox, source: str) -> str:
    """Every text and string constant of a template, joined by NUL."""
    tree = sandbox.parse(source)
    texts = [node.data for node in tree.find_all(nodes.TemplateData)]
    texts += [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    return "\0".join(texts)


def render_bounded(
    sandbox: TemplateSandbox,
    template: jinja2.Template,
    variables: Mapping[str, Any],
    *,
    timeout_s: float,
    max_chars: int,
) -> str:
    """The text of `template`.

    Raises:
        RenderTimeout: it takes longer than `timeout_s`.
        jinja2.TemplateRuntimeError: it writes more than `max_chars`.
        jinja2.TemplateError, TypeError, ValueError, ...: what the template itself raises.
    """
    pieces, num_chars = [], 0
    with sandbox.deadline(time.monotonic() + timeout_s):
        for piece in template.generate(dict(variables)):
            pieces.append(piece)
            num_chars += len(piece)
            if num_chars > max_chars:
                raise jinja2.TemplateRuntimeError(f"the prompt exceeds {max_chars} characters")
    return "".join(pieces)
