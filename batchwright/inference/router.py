"""Choose the backend of each request: a backend of its model, or of a fallback model."""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from batchwright.contracts.model_registry.registry_config import LimitConfig, LoadBalancing, ModelConfig
from batchwright.contracts.terms import Endpoint
from batchwright.inference.backend_client import RequestSender
from batchwright.inference.circuits.circuit_breaker import CircuitAttempt, CircuitBreaker
from batchwright.inference.limits.prefix_cache_warmup import PrefixGroups
from batchwright.inference.request_outcome import Outcome, invalid_response
from batchwright.inference.transport.base import Exchange, Header
from batchwright.inference.upstream import Backend, Upstream
from batchwright.rules.backends.body_rewriting import (
    INLINE_REWRITE_BYTES,
    with_default_model,
    with_model,
    with_priority,
)
from batchwright.rules.backends.response_checks import find_embeddings_problem
from batchwright.rules.dispatch.load_balancing import least_outstanding, prefix_affine
from batchwright.rules.dispatch.retry_policy import SUCCESS, RetryPolicy


class Dispatch(Struct, eq=False):
    """One request in flight to an upstream (a model at a certain backend).

    When the request has ended, call the method `end` of this object once.
    """

    upstream: Upstream
    attempt: CircuitAttempt

    def end(self) -> None:
        self.upstream.outstanding -= 1
        if not self.attempt.is_recorded:
            self.upstream.circuit.record_abort(self.attempt)


class ModelRouter:
    """A router that chooses a backend for each request to one model, and sends the request.

    An upstream is a model at a certain backend. The own upstreams are those of the model itself. If the
    circuit breakers of all own upstreams are open, the router also uses upstreams of the fallback models. An
    open circuit breaker lets only trials through. A trial is a single request that shows if the backend has
    recovered.

    When the configuration of the model changes, the router is updated, not replaced.
    """

    def __init__(
        self,
        model: str,
        retries: RetryPolicy,
        failures_to_open: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model, self.retries = model, retries
        self.upstreams: list[Upstream] = []
        self.fallbacks: Sequence[ModelRouter] = ()
        self.limits = LimitConfig()  # limits in the registry, which override the settings
        self.prefixes = PrefixGroups(clock)
        self._own_urls: list[str] = []
        self._load_balancing: LoadBalancing = "least-outstanding"
        self._has_aliases = False
        self._failures_to_open, self._clock = failures_to_open, clock

    def update(self, config: ModelConfig, backends: Sequence[Backend], retries: RetryPolicy) -> None:
        """Apply a changed configuration and retry policy of the model.

        For backends that stay configured, the circuit breakers and the counts of requests in flight are kept.
        `backends` has the backends that `config` names, in the same order.
        """
        known = {(upstream.backend, upstream.upstream_model): upstream for upstream in self.upstreams}
        upstreams: dict[tuple[Backend, str], Upstream] = {}
        for place, backend in zip(config.backends, backends, strict=True):
            name = place.model or self.model
            upstream = known.get((backend, name))
            if upstream is None:
                circuit = CircuitBreaker(self._failures_to_open, self._clock)
                upstream = Upstream(self.model, backend, name, 1.0, circuit)
            upstream.weight = place.weight
            upstream.jobs = None if config.kind == "sync" else config.jobs
            upstream.priority, upstream.in_flight = place.priority, place.in_flight
            upstream.calls_back = config.kind == "callback"
            upstreams[backend, name] = upstream
        self.upstreams = list(upstreams.values())
        self._own_urls = list(dict.fromkeys(upstream.backend.url for upstream in self.upstreams))
        self.retries, self._load_balancing = retries, config.load_balancing
        self._has_aliases = bool(config.aliases)
        stated = [upstream.in_flight for upstream in self.upstreams]
        self.prefixes.set_width(stated, is_affine=config.load_balancing == "prefix-affine")
        self.limits = config.limits

    def close(self) -> None:
        """Stop sending requests, because the model was removed. Requests in flight still complete."""
        self.upstreams, self._own_urls, self.fallbacks = [], [], ()

    @property
    def all_own_circuits_open(self) -> bool:
        """True if the circuit breakers of all the model's own backends are open.

        These backends then get only trials: single requests that show if the backend has recovered. False if
        the model has no backend.
        """
        for upstream in self.upstreams:  # faster than `all` over a generator
            if not upstream.circuit.is_open:
                return False
        return bool(self.upstreams)

    @property
    def only_trials_allowed(self) -> bool:
        """True if the circuit breakers of all backends of the model and of its fallback models are open.

        Only trials are then sent: single requests that show if a backend has recovered.
        """
        return self.all_own_circuits_open and all(upstream.circuit.is_open for upstream in self._reachable())

    @property
    def circuit(self) -> CircuitBreaker:
        """The circuit breaker with the shortest wait for the next request; a closed one if there is any.

        Only backends of the model itself are considered, not backends of its fallback models.
        """
        return min(
            self.upstreams, key=lambda upstream: (upstream.circuit.is_open, upstream.circuit.wait_seconds())
        ).circuit

    def wait_seconds(self, tenant: str = "", *, exclude: Collection[Upstream] = ()) -> float:
        """Return the seconds until a line of the tenant may be sent to an upstream that is not in `exclude`.

        An upstream is a model at a certain backend. The result is 0 if a line may be sent now, and infinity
        if no upstream can be used.
        """
        for upstream in self.upstreams:
            if not upstream.circuit.is_open and upstream not in exclude:
                return 0.0
        usable = (upstream for upstream in self._reachable() if upstream not in exclude)
        return min((upstream.circuit.wait_seconds(tenant) for upstream in usable), default=math.inf)

    @property
    def urls(self) -> Sequence[str]:
        """URLs of the backends that may get a request now.

        If the circuit breakers of all backends of the model itself are open, backends of fallback models are
        included. If no backend may get a request now, the result is the URLs of all backends of the model
        itself.
        """
        for upstream in self.upstreams:
            if upstream.circuit.is_open:
                break
        else:
            return self._own_urls
        available = [upstream for upstream in self._reachable() if not upstream.circuit.wait_seconds()]
        return list(dict.fromkeys(upstream.backend.url for upstream in available or self.upstreams))

    def select(
        self,
        prefix_hash: int = 0,
        *,
        tenant: str = "",
        exclude: Collection[Upstream] = (),
        avoid: Upstream | None = None,
        is_full: Callable[[str], bool] = lambda url: False,
        is_used_up: Callable[[str], bool] = lambda url: False,
    ) -> Dispatch | None:
        """Choose the backend for one request and return a Dispatch; None if no backend may get a request now.

        The choice is made between upstreams. An upstream is the model, or one of its fallback models, at a
        certain backend. The request counts as in flight to the upstream until `Dispatch.end` is called.

        Args:
            prefix_hash: hash of the beginning of the prompt. If the load balancing is `prefix-affine`,
                requests with the same hash get the same upstream, unless this upstream is far busier than the
                others.
            tenant: the tenant of the line.
            exclude: upstreams that must not be chosen.
            avoid: the upstream at which the line failed last. It is chosen only if no other upstream can be
                chosen.
            is_full: returns True if the backend with this URL is at its limit of requests in flight. A full
                backend is chosen only if all backends are full.
            is_used_up: returns True if this process has used up its part of the limit on requests in flight
                to the backend with this URL. All processes share this limit. Such a backend is never
                chosen.
        """
        only = self.upstreams[0] if len(self.upstreams) == 1 and not exclude else None
        if only is not None and not only.circuit.is_open and not is_used_up(only.backend.url):
            upstream = only
        else:
            found = self._candidates(exclude, avoid, is_used_up)
            if not found:
                return None
            if len(found) > 1:
                found = [upstream for upstream in found if not is_full(upstream.backend.url)] or found
            if len(found) == 1:
                upstream = found[0]
            elif self._load_balancing == "prefix-affine":
                upstream = prefix_affine(found, prefix_hash)
            else:
                upstream = least_outstanding(found)
        upstream.outstanding += 1
        return Dispatch(upstream, upstream.circuit.begin(tenant))

    def resume(self, key: str, tenant: str = "") -> Dispatch | None:
        """Count a running job as a request in flight, and return its Dispatch.

        Return None if no upstream has the key `key`, or if this upstream is not configured to run jobs.

        A job is a request whose result the backend returns later. An upstream is a model at a certain
        backend.

        Args:
            key: attribute `Upstream.key` of the upstream that runs the job.
        """
        for router in (self, *self.fallbacks):
            for upstream in router.upstreams:
                if upstream.key == key and upstream.jobs is not None:
                    upstream.outstanding += 1
                    circuit = upstream.circuit
                    begun = (
                        CircuitAttempt(circuit.clock(), is_trial=False)
                        if circuit.wait_seconds()
                        else circuit.begin(tenant)
                    )
                    return Dispatch(upstream, begun)
        return None

    async def send(
        self,
        dispatch: Dispatch,
        sender: RequestSender,
        path: str,
        body: bytes,
        request_id: str,
        extra: Sequence[Header] = (),
    ) -> Outcome:
        """Send a request to the chosen backend. Return the outcome as the output line shows it.

        Before the body is sent, the model's name in it is replaced by the name that the backend uses. If a
        priority is configured for the backend, it is set in the body, too.

        Args:
            dispatch: the result of `select`.
            sender: the client or the microbatch sender of the chosen backend.
            path: path of the endpoint.
            request_id: id of the line, the same at each attempt.
            extra: headers of the batch that are forwarded to the backend.
        """
        upstream = dispatch.upstream
        body = await self._body_for(upstream, body)
        outcome = await sender.send(upstream.backend.endpoint(path), body, request_id, extra)
        return self.finalize_response(upstream, path, body, outcome)

    def try_send_now(
        self,
        dispatch: Dispatch,
        path: str,
        body: bytes,
        request_id: str,
        extra: Sequence[Header],
        on_outcome: Callable[[Outcome], None],
    ) -> Exchange | None:
        """Send the body to the chosen backend if that is possible without awaiting.

        Return an exchange, which is the request in flight: its method `cancel` cancels the request. If
        nothing was sent, return None.

        Args:
            on_outcome: called once with the outcome when the request has ended. The caller must pass the
                outcome to `finalize_response`.
        """
        upstream = dispatch.upstream
        backend = upstream.backend
        if upstream.priority is not None or self._is_renamed(upstream):
            if len(body) > INLINE_REWRITE_BYTES:
                return None
            body = self._rewrite(upstream, body)
        return backend.client.try_send_now(backend.endpoint(path), body, request_id, extra, on_outcome)

    async def submit(
        self, upstream: Upstream, path: str, body: bytes, request_id: str, key: str, extra: Sequence[Header]
    ) -> Outcome:
        """Submit the body to the backend as a job, which is a request whose result the backend returns later.

        Return the outcome of the submission, not the line's result. `key` is the idempotency key of the job.
        """
        body = await self._body_for(upstream, body)
        return await upstream.backend.client.submit_job(
            upstream.backend.endpoint(path), body, request_id, key, extra
        )

    async def _body_for(self, upstream: Upstream, body: bytes) -> bytes:
        """Return the body with the model name and the priority that this backend expects."""
        if upstream.priority is None and not self._is_renamed(upstream):
            return body
        if len(body) <= INLINE_REWRITE_BYTES:
            return self._rewrite(upstream, body)
        return await asyncio.to_thread(self._rewrite, upstream, body)

    def _is_renamed(self, upstream: Upstream) -> bool:
        return self._has_aliases or upstream.upstream_model != self.model

    def _rewrite(self, upstream: Upstream, body: bytes) -> bytes:
        if self._is_renamed(upstream):
            body = with_model(body, upstream.upstream_model)
        return body if upstream.priority is None else with_priority(body, upstream.priority)

    def finalize_response(self, upstream: Upstream, path: str, body: bytes, outcome: Outcome) -> Outcome:
        """Return the outcome as the output line shows it.

        If an embeddings response does not match the request `body`, the outcome becomes an error. If the
        response comes from a fallback model and names no model, the name of the fallback model is added.
        """
        if path == Endpoint.EMBEDDINGS and outcome.verdict is SUCCESS:
            problem = find_embeddings_problem(body, outcome.body)  # the list may not match the request
            outcome = invalid_response(problem) if problem else outcome
        if upstream.model != self.model and 200 <= outcome.status < 300:
            return replace(outcome, body=with_default_model(outcome.body, upstream.model))
        return outcome

    def _reachable(self) -> list[Upstream]:
        """Return the upstreams of the model itself. If all their circuit breakers are open, add the upstreams
        of its fallback models.

        An upstream is a model at a certain backend.
        """
        if not self.all_own_circuits_open:
            return self.upstreams
        return [*self.upstreams, *(upstream for router in self.fallbacks for upstream in router.upstreams)]

    def _candidates(
        self, exclude: Collection[Upstream], avoid: Upstream | None, is_used_up: Callable[[str], bool]
    ) -> list[Upstream]:
        """Return the upstreams from which `select` may choose; empty if there are none.

        An upstream is a model at a certain backend. A trial is a request through an open circuit breaker. The
        first rule that applies decides:

        - If an upstream of the model itself may get a trial now, return only this upstream.
        - If upstreams of the model itself have closed circuit breakers, return these upstreams.
        - If the circuit breakers of all upstreams of the model itself are open, apply the same rules to each
          fallback model. Return the upstreams of the first fallback model that has usable upstreams.

        If a backend did not respond to the last request for its model list, its upstream is returned only if
        the model has no other usable upstream.

        Args:
            exclude: upstreams that are never returned.
            avoid: upstream that is returned only if its model has no other usable upstream; None to avoid
                none.
            is_used_up: returns True if the backend with this URL may get no request at all.
        """
        fallbacks = self.fallbacks if self.all_own_circuits_open else ()
        for router in (self, *fallbacks):
            found = [
                one
                for one in router.upstreams
                if one not in exclude and not one.circuit.wait_seconds() and not is_used_up(one.backend.url)
            ]
            found = [one for one in found if not one.backend.is_unreachable] or found
            found = [one for one in found if one is not avoid] or found
            if found:
                trials = [one for one in found if one.circuit.is_open and not one.backend.is_unreachable]
                return trials[:1] or found
        return []
