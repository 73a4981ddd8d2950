"""What differs between the endpoints that generate text, behind one seam."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from engine.messages import Ready
from scheduler.slo import SLO, SLOClasses
from server.answer import AnswerWriter, Envelope
from server.generation_plan import GenerationPlan
from server.protocol.common import SamplingOptions
from server.service import Service
from server.slo_request import SLOBody, resolve_slo

Body = TypeVar("Body", bound=SamplingOptions)


class Endpoint(Protocol[Body]):
    """Reads one kind of body and writes one kind of answer. Without state."""

    body_type: type[Body]
    id_prefix: str

    def num_choices(self, body: Body) -> int:
        """Choices that the body asks for: prompts times n."""

    def estimate_tokens(self, body: Body) -> int:
        """Prompt tokens, before anything is tokenized; rather too few than too many."""

    def check(self, body: Body, ready: Ready, service: Service) -> None:
        """What depends on the model and costs nothing to check.

        Raises:
            ApiError: 400.
        """

    async def plan(self, body: Body, ready: Ready, service: Service) -> GenerationPlan:
        """Tokenize, off the event loop.

        Raises:
            ApiError, TemplateError: 400, the prompt is too long or no prompt can be made.
            TextOverloaded, TextTimeout: no worker had time for it.
        """

    def writer(self, envelope: Envelope, plan: GenerationPlan, service: Service) -> AnswerWriter:
        """A writer for one answer."""


def asked_slo(body: SamplingOptions, headers: Mapping[str, str], classes: SLOClasses) -> SLO:
    """The class and the targets that a request asks for.

    Where no class and no tier is named, `priority` (lower is earlier) asks for tier `fast` below 0 and for `flex`
    above, if a class claims them.

    Raises:
        InvalidSLO: 400.
    """
    tier = body.service_tier
    if tier is None and body.priority:
        by_priority = "fast" if body.priority < 0 else "flex"
        tier = by_priority if classes.by_tier(by_priority) is not None else None
    return resolve_slo(classes, headers, tier, None if body.slo is None else SLOBody.parse(body.slo))
