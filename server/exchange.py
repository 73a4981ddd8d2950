"""One generation request, from the last byte of its body to the last byte of its answer.

Reserve a place, tokenize, hand the group to the engine, hold the headers until it is admitted, then stream or collect.
Whatever happens on the way - refusal, fault, disconnect, drain - leaves through one place, which gives everything back
and counts the request once.
"""

from __future__ import annotations

import logging
import time
import uuid
from typing import Generic, TypeVar

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from engine.errors import EngineError
from engine.messages import AddGroup, SLORequest
from scheduler.slo import SLO
from server.answer import Envelope
from server.answer_sender import AnswerSender
from server.chat import TemplateError
from server.endpoint import Endpoint, asked_slo
from server.errors import ApiError, draining, server_error
from server.exchange_end import end_of, is_clients_mistake
from server.generation import Generation
from server.generation_plan import GenerationPlan
from server.interruption import Interrupted, Interruption
from server.protocol.common import SamplingOptions
from server.queue_places import QueuePlace
from server.request_body import check_content_type, parse_body, read_raw
from server.request_id import request_id_of
from server.request_record import End, RequestRecord
from server.sampling_options import check_logprobs
from server.service import Service
from server.slo_headers import granted_tier, promise_headers
from server.slo_request import InvalidSLO
from server.tenant import tenant_of
from server.text_worker import TextOverloaded, TextTimeout

logger = logging.getLogger(__name__)
Body = TypeVar("Body", bound=SamplingOptions)
_EXPECTED = (ApiError, EngineError, Interrupted, InvalidSLO, TemplateError, TextOverloaded, TextTimeout)


class Exchange(Generic[Body]):
    """Runs once."""

    def __init__(self, service: Service, endpoint: Endpoint[Body], scope: Scope, receive: Receive, send: Send) -> None:
        self._service = service
        self._endpoint = endpoint
        self._scope = scope
        self._receive = receive
        self._sender = AnswerSender(send)
        self._id = endpoint.id_prefix + uuid.uuid4().hex
        self._arrival_s = 0.0
        self._slo: SLO | None = None
        """Known once the body is valid: from here it is an offered request."""
        self._num_choices = 0
        self._tenant = ""
        self._record: RequestRecord | None = None

    async def run(self) -> None:
        """Answer the request, whatever the answer is."""
        try:
            raw = await self._read()
            interruption = Interruption(self._receive)
            async with interruption:
                with self._service.lifecycle.track(interruption):
                    await self._serve(raw)
        except _EXPECTED as error:
            self._close(error)
            await self._sender.fail(error)
        except BaseException:
            self._close(server_error("internal error"))
            raise

    async def _read(self) -> bytes:
        check_content_type(Request(self._scope))
        raw = await read_raw(self._receive)
        self._arrival_s = time.monotonic()
        if self._service.lifecycle.is_draining:
            raise draining()
        return raw

    async def _serve(self, raw: bytes) -> None:
        service, endpoint = self._service, self._endpoint
        body = await parse_body(endpoint.body_type, raw)
        service.check_model(body.model)
        slo = asked_slo(body, Headers(scope=self._scope), service.classes)
        self._slo, self._num_choices = slo, endpoint.num_choices(body)
        self._tenant = tenant_of(self._scope, body)
        ready = service.ready()
        endpoint.check(body, ready, service)
        with service.places.take(slo, endpoint.estimate_tokens(body), service.num_waiting_by_class()) as place:
            plan = await endpoint.plan(body, ready, service)
            check_logprobs(plan)
            await self._generate(plan, slo, place, has_tiers=ready.kv_tiers is not None)

    async def _generate(self, plan: GenerationPlan, slo: SLO, place: QueuePlace, *, has_tiers: bool) -> None:
        service = self._service
        place.set_tokens(plan.num_prompt_tokens)
        record = self._open(slo)
        record.num_prompt_tokens = plan.num_prompt_tokens
        async with service.engine.add(self._group(plan, slo)) as stream:
            admitted = await stream.admission()
            place.admitted()
            record.admitted(admitted, time.monotonic())
            generation = Generation(stream, plan, service.tokenizer, has_tiers=has_tiers)
            envelope = self._envelope(record)
            writer = self._endpoint.writer(envelope, plan, service)
            await self._sender.send(generation, writer, record, promise_headers(record, service.classes))
        self._close(None)

    def _group(self, plan: GenerationPlan, slo: SLO) -> AddGroup:
        return AddGroup(
            group_id=self._id,
            prompts=plan.prompts,
            n=plan.n,
            sampling=plan.sampling,
            slo=SLORequest(
                requested=slo.requested,
                granted=slo.granted,
                ttft_s=slo.ttft_s,
                tpot_s=slo.tpot_s,
                e2e_deadline_s=slo.e2e_deadline_s,
                may_degrade=slo.may_degrade,
            ),
            arrival_s=self._arrival_s,
            cache_salt=plan.cache_salt,
            retention=plan.retention,
            tenant=self._tenant,
        )

    def _envelope(self, record: RequestRecord) -> Envelope:
        tier = granted_tier(record, self._service.classes)
        return Envelope(self._id, int(time.time()), self._service.model_id, tier)

    def _open(self, slo: SLO) -> RequestRecord:
        if self._record is None:
            self._record = self._service.ledger.open(self._id, slo, self._arrival_s, self._num_choices)
        return self._record

    def _close(self, error: Exception | None) -> None:
        """Count the request, once; None: it was answered in full.

        What the client got wrong is no offered request, and neither is a body that never became one.
        """
        if self._slo is None or (self._record is None and is_clients_mistake(error)):
            return
        end, reason = (End.COMPLETED, None) if error is None else end_of(error)
        message = str(error) if end in (End.REFUSED, End.EXPIRED) else None
        outcome = self._service.ledger.close(self._open(self._slo), end, time.monotonic(), reason, message)
        logger.debug(
            "%s: %s %s, %s (%s)", request_id_of(self._scope), self._id, end.value, outcome.value, reason or "no reason"
        )
