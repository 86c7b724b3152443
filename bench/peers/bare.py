"""Alternative to Batchwright: a loop that uses only asyncio and Batchwright's HTTP transport.

It sends requests and appends the responses to a file, and does nothing else.
"""

import asyncio
from collections.abc import Iterator
from typing import BinaryIO

import msgspec
import uvloop

from batchwright.inference.transport.base import BackendRequest, Header, TargetUrl
from batchwright.inference.transport.connection_pool import PooledTransport
from bench.peers.harness import PeerJob, run

_HEADERS: list[Header] = [(b"content-type", b"application/json"), (b"accept", b"application/json")]
_MOST_BYTES, _SECONDS = 16 * 1024 * 1024, 60.0


class _Line(msgspec.Struct):
    body: msgspec.Raw


async def _send_all(job: PeerJob) -> int:
    decode = msgspec.json.Decoder(_Line).decode
    engine = PooledTransport(connect_seconds=10.0)
    target = TargetUrl.of(f"{job.url}/v1/chat/completions")
    with job.path.open("rb") as lines, job.out.open("ab") as out:
        bodies = (bytes(decode(line).body) for line in lines)
        try:
            sent = await asyncio.gather(*(_send(engine, target, bodies, out) for _ in range(job.in_flight)))
        finally:
            await engine.aclose()
    return sum(sent)


async def _send(engine: PooledTransport, target: TargetUrl, bodies: Iterator[bytes], out: BinaryIO) -> int:
    sent = 0
    for body in bodies:
        request = BackendRequest(b"POST", target, _HEADERS, body)
        answer = await engine.exchange(request, max_bytes=_MOST_BYTES, seconds=_SECONDS)
        if answer.status != 200:
            raise SystemExit(f"the backend answered {answer.status}")
        out.write(answer.body + b"\n")
        sent += 1
    return sent


if __name__ == "__main__":
    run(lambda job: uvloop.run(_send_all(job)))
