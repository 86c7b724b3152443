"""Hooks of the operator's before each request may rewrite its body or refuse the line (S1-114, S1-115).

A hook is a callable that the settings name, `async def hook(call: Call)` or `def hook(call: Call)`, which
runs in a thread of its own. What it returns: None leaves the body, a mapping or bytes replace it. `Refused`
settles the line as `policy_rejected`. All else it does, raising, hanging or returning something strange, is a
failure of this line alone: an attempt of it is used, and it ends as `hook_failed` (S1-117).
"""

import asyncio
import inspect
import logging
import reprlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from threading import Thread
from typing import NamedTuple, cast

import msgspec

from batchwright.contracts.errors import LineCode
from batchwright.inference.importing import NotImportable, imported
from batchwright.inference.outcomes import Outcome
from batchwright.rules import retries
from batchwright.rules.answers import is_json
from batchwright.settings import Settings, SettingsError

logger = logging.getLogger(__name__)
_SHOWN = 500
_MOST_THREADS = 64
_REPR = reprlib.Repr()  # that of an operator's class may fail in turn
_REPR.maxother = _SHOWN


class Refused(Exception):
    """Raised by a hook: the line is not sent; the message is the line's error."""


class Call(NamedTuple):
    """What is about to be asked. `body` is the request's JSON."""

    tenant: str
    batch_id: str
    custom_id: str
    model: str
    endpoint: str
    body: bytes


Hook = Callable[[Call], Awaitable[object] | object]


class Hooks:
    """All hooks of the settings, one after the other, each seeing the last one's body.

    Raises SettingsError when made: one cannot be imported or called.
    """

    def __init__(self, settings: Settings) -> None:
        self._hooks = [(name, _hook(name)) for name in settings.pre_call_hooks]
        self._threads = _Threads(_MOST_THREADS)
        self._running: set[asyncio.Task[Call | _Refusal | BaseException]] = set()
        self._seconds = settings.hook_timeout_seconds

    def __bool__(self) -> bool:
        return bool(self._hooks)

    async def __call__(self, call: Call) -> Call | Outcome:
        """The call as it may be sent, or how the line ends. Never raises but for a cancel."""
        for name, hook in self._hooks:
            after = await self._after(hook, call)
            if isinstance(after, _Refusal):
                return _outcome(retries.REJECTED, LineCode.POLICY_REJECTED, after.words or "Refused.")
            if isinstance(after, BaseException):
                return self._failure(name, after)
            call = after
        return call

    async def _after(self, hook: Hook, call: Call) -> "Call | _Refusal | BaseException":
        """In a task of its own: a hook that heeds no cancel is left behind."""
        task = asyncio.create_task(self._ended(hook, call))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            await asyncio.wait([task], timeout=self._seconds)
            return task.result() if task.done() else _Late()
        finally:
            task.cancel()

    async def _ended(self, hook: Hook, call: Call) -> "Call | _Refusal | BaseException":
        try:
            return _changed(call, await self._result(hook, call))
        except Refused as refusal:
            return _refusal(refusal)
        except BaseException as error:  # the operator's code: it ends neither the line's task nor the worker
            return error

    async def _result(self, hook: Hook, call: Call) -> object:
        result = hook(call) if _is_async(hook) else await self._threads.run(hook, call)
        return await result if inspect.isawaitable(result) else result

    def _failure(self, name: str, error: BaseException) -> Outcome:
        late = f"took longer than {self._seconds:g} s" if isinstance(error, _Late) else ""
        logger.warning("a hook failed", extra={"hook": name, "error": late or _REPR.repr(error)})
        how = late or ("returned no body" if isinstance(error, _NoBody) else "failed")
        message = f"The hook {name!r} {how}: the request was not sent."
        return _outcome(retries.HOOK_FAILED, LineCode.HOOK_FAILED, message)


class _Late(Exception):
    """A hook had its time."""


class _Refusal(NamedTuple):
    words: str


def _refusal(refusal: Refused) -> _Refusal | Exception:
    try:
        return _Refusal(str(refusal))
    except Exception as error:  # a class of the operator's own
        return error


def _outcome(verdict: retries.Verdict, code: LineCode, message: str) -> Outcome:
    return Outcome(verdict, code=code, message=message[:_SHOWN])


def _hook(reference: str) -> Hook:
    try:
        found = imported(reference)
    except NotImportable as error:
        raise SettingsError(f"BATCHWRIGHT_PRE_CALL_HOOKS is wrong: {error}.") from error
    if not callable(found):
        raise SettingsError(f"BATCHWRIGHT_PRE_CALL_HOOKS is wrong: {reference!r} cannot be called.")
    return cast("Hook", found)


def _is_async(hook: Hook) -> bool:
    """Whether calling it only makes a coroutine."""
    return inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(type(hook).__call__)


class _Threads:
    """Of plain hooks alone: one that hangs holds up neither other work of the process nor its end."""

    def __init__(self, most: int) -> None:
        self._free = asyncio.Semaphore(most)

    async def run(self, hook: Hook, call: Call) -> object:
        """Raises what the hook raises. A call that is given up goes on, and has its thread until it ends."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[object] = loop.create_future()

        def over(result: object, error: BaseException | None) -> None:
            self._free.release()
            if answered.done():
                return
            if error is None:
                answered.set_result(result)
            else:
                answered.set_exception(RuntimeError(repr(error)) if _is_special(error) else error)

        def work() -> None:
            result, error = None, None
            try:
                result = hook(call)
            except BaseException as raised:  # told where it is waited for
                error = raised
            with suppress(RuntimeError):  # the loop may be gone
                loop.call_soon_threadsafe(over, result, error)

        Thread(target=work, name="hook", daemon=True).start()
        return await answered


def _is_special(error: BaseException) -> bool:
    """What a future does not take, or what means something else where it is waited for."""
    return isinstance(error, StopIteration) or not isinstance(error, Exception)


class _NoBody(Exception):
    """What a hook returned."""


def _changed(call: Call, returned: object) -> Call:
    """Raises _NoBody, TypeError: what was returned is no body."""
    if returned is None:
        return call
    body = returned if isinstance(returned, bytes) else msgspec.json.encode(_mapping(returned))
    if not is_json(body) or not body.lstrip().startswith(b"{"):
        raise _NoBody("it returned bytes that are no JSON object")
    return call._replace(body=body)


def _mapping(returned: object) -> Mapping[str, object]:
    if isinstance(returned, Mapping):
        return cast("Mapping[str, object]", returned)
    raise _NoBody(f"it returned {type(returned).__name__}, neither a mapping nor bytes nor None")
