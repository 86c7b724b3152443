"""/queue: submit and retrieve jobs. A job is a single request for any endpoint, without a batch. Its result
can be posted to a URL of the client.
"""

from functools import partial

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from batchwright.api.auth.caller import caller_of, tenant_of
from batchwright.api.dependencies import ApiDependencies
from batchwright.api.errors import call_not_found, invalid_value, missing_parameter, one_of
from batchwright.api.openapi import error_responses
from batchwright.api.routes.calls.call_body import (
    CallBodies,
    Fields,
    check_body,
    flag,
    model_of,
    nested,
    sent_key,
    text,
)
from batchwright.api.schemas.json_body import json_body_spec, process_body, reject_unknown
from batchwright.api.schemas.webhooks import WebhookSpec
from batchwright.api.services.calls.acceptance import CallRequest, Calls
from batchwright.api.services.idempotency import idempotency_key_parameter
from batchwright.api.services.webhooks import Webhooks
from batchwright.contracts.api_objects.calls import JobObject, NewJobObject
from batchwright.contracts.api_objects.webhook_events import CALL_EVENTS
from batchwright.contracts.terms import Endpoint
from batchwright.rules.calls.call_lines import edit_body
from batchwright.rules.calls.call_results import job_body
from batchwright.rules.ids import is_call_id
from batchwright.rules.webhooks.ssrf_rules import MAX_URL_CHARACTERS

_PREFIX = "job_"
_JSON = "application/json"


class _SubmitBody(BaseModel):
    """Schema of the body that submits a job."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(min_length=1, max_length=256, description="a model that a backend serves")
    payload: dict[str, JsonValue] = Field(description="the body for the backend, with or without `model`")
    endpoint: Endpoint | None = Field(None, description=f"{Endpoint.CHAT_COMPLETIONS} if absent")
    callback_url: str | None = Field(
        None, min_length=1, max_length=MAX_URL_CHARACTERS, description="receives the job when it has ended"
    )


class QueueRoutes:
    def __init__(self, deps: ApiDependencies, bodies: CallBodies, calls: Calls) -> None:
        self._settings, self._bodies = deps.settings, bodies
        self._calls, self._webhooks = calls, Webhooks(deps)

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/queue", tags=["Single calls"])
        router.add_api_route(
            "/submit",
            self.submit,
            methods=["POST"],
            response_model=NewJobObject,
            openapi_extra=json_body_spec(_SubmitBody),
            responses=error_responses(404, 409, 429),
            dependencies=[Depends(idempotency_key_parameter)],
        )
        router.add_api_route("/{job_id}", self.get, response_model=JobObject, responses=error_responses(404))
        return router

    async def submit(self, request: Request) -> Response:
        """Submit a job: a single request, which becomes a line of a batch. The batch starts within a
        second.
        """
        tenant = tenant_of(request, self._settings)
        async with self._bodies.read(request, tenant) as fields:
            call = await process_body(request, partial(self._parse, fields))
            if call.webhook is not None:
                await self._webhooks.check_url(call.webhook.url, "callback_url", tenant)
            caller, key = caller_of(request, self._settings), await sent_key(request, fields)
            submitted = await self._calls.submit(call, tenant, caller, key)
            secret = None
            if call.webhook is not None:
                secret = await self._webhooks.secret_of_call(tenant, submitted.id)
            return Response(job_body(submitted, callback_secret=secret), media_type=_JSON)

    async def get(self, request: Request, job_id: str) -> Response:
        """Retrieve a job, with its result if it has ended."""
        tenant = tenant_of(request, self._settings)
        if not is_call_id(job_id, _PREFIX):
            raise call_not_found(job_id)
        return Response(job_body(await self._calls.get(tenant, job_id)), media_type=_JSON)

    def _parse(self, fields: Fields) -> CallRequest:
        reject_unknown(fields, _SubmitBody.model_fields)
        if text(fields, "model") is None:
            raise missing_parameter("model")
        model = model_of(fields, self._settings)
        payload = nested(fields, "payload")
        if (own := text(payload, "model", "payload.")) not in (None, model):
            message = f"'payload.model' is '{own}', but 'model' is '{model}'. Send the same, or leave it out."
            raise invalid_value("payload.model", message)
        if flag(payload, "stream", "payload."):
            raise invalid_value("payload.stream", "A job cannot stream: its result is sent when it is ready.")
        endpoint = text(fields, "endpoint") or Endpoint.CHAT_COMPLETIONS
        endpoint = Endpoint(one_of(endpoint, "endpoint", *Endpoint))
        body = edit_body(payload, ("background", "service_tier", "stream"), model=model)
        check_body(endpoint, body)
        url = text(fields, "callback_url")
        webhook = None if url is None else WebhookSpec(url, list(CALL_EVENTS))
        return CallRequest(_PREFIX, endpoint, model, body, webhook=webhook)
