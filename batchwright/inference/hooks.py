"""Operator hooks, which are called before each request and may change the request's body or reject the line.

A hook is a function named in the settings: `async def hook(call: HookCall)` or `def hook(call: HookCall)`. A
function without `async` runs in a thread of its own. If the hook returns None, the body stays unchanged. If
the hook returns a mapping or bytes, they replace the body. If the hook raises `Refused`, the line ends with
the error `policy_rejected`.

Any other exception, a timeout or an invalid result is a failure of this line only. Each failure uses one of
the line's attempts. After the last attempt, the line ends with the error `hook_failed`.
"""

import asyncio
import inspect
import logging
import reprlib
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from threading import Thread
from typing import NamedTuple, cast

import msgspec

from batchwright.contracts.errors import LineCode
from batchwright.inference.request_outcome import Outcome
from batchwright.rules.dispatch import retry_policy
from batchwright.rules.json_text import is_json
from batchwright.settings import Settings, SettingsError
from batchwright.settings.value_formats import InvalidObjectReference, load_object
from batchwright.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)
_MAX_MESSAGE_CHARS = 500
_MAX_THREADS = 64
_REPR = reprlib.Repr()  # shortens values, and survives classes whose repr raises
_REPR.maxother = _MAX_MESSAGE_CHARS


class Refused(Exception):
    """Raised by a hook (the operator's own code) to reject a line.

    The line is not sent. The exception's message becomes the message of the line's error.
    """


class HookCall(NamedTuple):
    """A request that is about to be sent, with its JSON body. It is the argument of a hook."""

    tenant: str
    batch_id: str
    custom_id: str
    model: str
    endpoint: str
    body: bytes


Hook = Callable[[HookCall], Awaitable[object] | object]


def load_hooks(settings: Settings) -> list[tuple[str, Hook]]:
    """Import the hooks (functions of the operator) that the settings name. Return each with its name.

    The hooks are in the order of the settings.

    Raises:
        SettingsError: a hook cannot be imported or is not callable.
    """
    return [(name, _load_hook(name)) for name in settings.pre_call_hooks]


class PreCallHooks:
    """A callable that calls all hooks (the operator's own functions), before a request is sent.

    The hooks are called in the order of the settings. Each hook gets the body that the previous hook
    returned. The constructor raises SettingsError if a hook cannot be imported or is not callable.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._hooks = load_hooks(settings)
        self._hook_seconds = metrics.hook_seconds
        self._threads = _Threads()
        self._running: set[asyncio.Task[HookCall | _Refusal | BaseException]] = set()
        self._seconds = settings.hook_timeout_seconds

    def __bool__(self) -> bool:
        return bool(self._hooks)

    async def __call__(self, call: HookCall) -> HookCall | Outcome:
        """Call all hooks and return the request to send.

        If a hook rejects the line or fails, return the line's outcome instead.
        """
        began_at = time.monotonic()
        checked = await self._call_all(call)
        if isinstance(checked, HookCall):
            result = "allowed"
        else:
            result = "rejected" if checked.verdict is retry_policy.HOOK_REJECTED else "failed"
        self._hook_seconds.labels(call.endpoint, result).observe(time.monotonic() - began_at)
        return checked

    async def _call_all(self, call: HookCall) -> HookCall | Outcome:
        for name, hook in self._hooks:
            after = await self._run_bounded(hook, call)
            if isinstance(after, _Refusal):
                return _outcome(
                    retry_policy.HOOK_REJECTED, LineCode.POLICY_REJECTED, after.words or "Refused."
                )
            if isinstance(after, BaseException):
                return self._failure(name, after)
            call = after
        return call

    async def _run_bounded(self, hook: Hook, call: HookCall) -> "HookCall | _Refusal | BaseException":
        """Run one hook. Return the request to send, a refusal, or the exception that the hook raised.

        The hook runs in a task of its own. If the hook exceeds its time limit, cancel this task and return a
        `_TimedOut`, without waiting for the end of the task.
        """
        task = asyncio.create_task(self._call_hook(hook, call))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            await asyncio.wait([task], timeout=self._seconds)
            return task.result() if task.done() else _TimedOut()
        finally:
            task.cancel()

    async def _call_hook(self, hook: Hook, call: HookCall) -> "HookCall | _Refusal | BaseException":
        try:
            # Calling an asynchronous hook only creates a coroutine.
            is_async = inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(type(hook).__call__)
            result = hook(call) if is_async else await self._threads.run(hook, call)
            return _with_returned_body(call, await result if inspect.isawaitable(result) else result)
        except Refused as refusal:
            return _refusal(refusal)
        except BaseException as error:  # an operator's hook must not end the line's task or the worker
            return error

    def _failure(self, name: str, error: BaseException) -> Outcome:
        late = f"took longer than {self._seconds:g} s" if isinstance(error, _TimedOut) else ""
        logger.warning("hook failed", extra={"hook": name, "error": late or _REPR.repr(error)})
        how = late or ("returned no body" if isinstance(error, _InvalidBody) else "failed")
        message = f"The hook {name!r} {how}: the request was not sent."
        return _outcome(retry_policy.HOOK_FAILED, LineCode.HOOK_FAILED, message)


class _TimedOut(Exception):
    """The call of a hook took longer than the time limit. `_run_bounded` returns this as its result."""


class _Refusal(NamedTuple):
    words: str


def _refusal(refusal: Refused) -> _Refusal | Exception:
    try:
        return _Refusal(str(refusal))
    except Exception as error:  # str() of an operator's class may raise
        return error


def _outcome(verdict: retry_policy.Classification, code: LineCode, message: str) -> Outcome:
    return Outcome(verdict, code=code, message=message[:_MAX_MESSAGE_CHARS])


def _load_hook(reference: str) -> Hook:
    try:
        found = load_object(reference)
    except InvalidObjectReference as error:
        raise SettingsError(f"BATCHWRIGHT_PRE_CALL_HOOKS is wrong: {error}.") from error
    if not callable(found):
        raise SettingsError(f"BATCHWRIGHT_PRE_CALL_HOOKS is wrong: {reference!r} cannot be called.")
    return cast("Hook", found)


class _Threads:
    """The threads for hooks that are not `async`. At most 64 hooks run at the same time.

    A hook that never ends occupies one of these threads. Other work of the process continues.
    """

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_MAX_THREADS)

    async def run(self, hook: Hook, call: HookCall) -> object:
        """Call a hook in a thread. Return the hook's result, or raise the hook's exception.

        If the call is cancelled, the thread stays busy until the hook ends.
        """
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[object] = loop.create_future()

        def over(result: object, error: BaseException | None) -> None:
            self._free.release()
            if answered.done():
                return
            if error is None:
                answered.set_result(result)
            elif isinstance(error, StopIteration) or not isinstance(error, Exception):
                answered.set_exception(RuntimeError(repr(error)))  # a future cannot store the error itself
            else:
                answered.set_exception(error)

        def work() -> None:
            result, error = None, None
            try:
                result = hook(call)
            except BaseException as raised:  # re-raised where the result is awaited
                error = raised
            with suppress(RuntimeError):  # the loop may be closed
                loop.call_soon_threadsafe(over, result, error)

        try:
            Thread(target=work, name="hook", daemon=True).start()
        except RuntimeError:  # the system starts no more threads
            self._free.release()
            raise
        return await answered


class _InvalidBody(Exception):
    """Raised if a hook returned something that is not a request body."""


def _with_returned_body(call: HookCall, returned: object) -> HookCall:
    """Return the request with the body that a hook returned.

    Args:
        returned: a mapping, or the bytes of a JSON object. If it is None, the body stays unchanged.

    Raises:
        _InvalidBody: `returned` is not a JSON object.
        TypeError: `returned` contains a value that JSON cannot represent.
    """
    if returned is None:
        return call
    if isinstance(returned, bytes):
        body = returned
    elif isinstance(returned, Mapping):
        body = msgspec.json.encode(cast("Mapping[str, object]", returned))
    else:
        raise _InvalidBody(f"it returned {type(returned).__name__}, neither a mapping nor bytes nor None")
    if not is_json(body) or not body.lstrip().startswith(b"{"):
        raise _InvalidBody("it returned bytes that are not a JSON object")
    return call._replace(body=body)
