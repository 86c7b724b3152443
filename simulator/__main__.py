"""`python -m batchwright.simulator`: an OpenAI-compatible backend for the demo, tests and benchmarks."""

import asyncio
import signal
import sys
from typing import Annotated

import typer
import uvloop

from batchwright.simulator.backend import SimulatedBackend, SimulatorOptions
from batchwright.simulator.faults import Fault, parse_short
from batchwright.simulator.latency import Latency, parse_override
from batchwright.simulator.server import Server

DEFAULT_MODELS = "llama-3.1-8b,qwen2.5-7b,mistral-7b"


def _fault(text: str) -> Fault:
    model, colon, short = text.partition(":")
    if not colon:
        raise ValueError(f"{text!r} is not MODEL:KIND[=SECONDS][*COUNT][@RATE]; MODEL may be '*'")
    fault = parse_short(short)
    fault.model = None if model == "*" else model
    return fault


async def serve(options: SimulatorOptions, host: str, port: int) -> None:
    """Run the server until the process receives SIGTERM or SIGINT. Print the server's URL to stderr."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server = Server(SimulatedBackend(options).handle)
    await server.start(host, port)
    print(f"simulator listening on {server.url}", file=sys.stderr, flush=True)
    await stopped.wait()
    await server.stop()


_Slots = Annotated[
    int,
    typer.Option(
        min=0,
        help="Requests that are processed at the same time; 0: any number. While all are taken, requests "
        "with `X-Source: dispatcher` get 503, and others wait.",
    ),
]


def run(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 0,
    models: Annotated[
        str, typer.Option(help="Names of the served models, separated by commas.")
    ] = DEFAULT_MODELS,
    latency_ms: Annotated[
        float, typer.Option("--latency-ms", "--latency", help="Median time of a response.")
    ] = 0.0,
    jitter: Annotated[float, typer.Option(help="Sigma of a lognormal factor on the latency; 0: none.")] = 0.0,
    token_ms: Annotated[float, typer.Option(help="Added for each output token.")] = 0.0,
    prompt_token_ms: Annotated[
        float, typer.Option(help="Added for each prompt token not in the cache.")
    ] = 0.0,
    model_latency: Annotated[
        list[str] | None, typer.Option(help="MODEL:latency_ms=200,jitter=0.3,...; repeatable.")
    ] = None,
    cache_tokens: Annotated[
        int, typer.Option(help="Size of the prefix cache of each model; 0: none.")
    ] = 200_000,
    output_tokens: Annotated[int, typer.Option(help="Tokens of a response.")] = 16,
    output_jitter: Annotated[
        float, typer.Option(help="Sigma of a lognormal factor on the tokens of a response; 0: none.")
    ] = 0.0,
    dimensions: Annotated[int, typer.Option(help="Dimensions of an embedding.")] = 8,
    fault: Annotated[
        list[str] | None, typer.Option(help="MODEL:KIND[=SECONDS][*COUNT][@RATE]; repeatable.")
    ] = None,
    api_key: Annotated[str, typer.Option(help="Reject requests without this Bearer key.")] = "",
    slots: _Slots = 0,
    direct_queue: Annotated[int, typer.Option(min=0, help="Requests that may wait for a slot.")] = 10,
    ledger: Annotated[bool, typer.Option(help="Record each request.")] = True,
) -> None:
    """Serve a simulated OpenAI-compatible backend for the demo, tests and benchmarks."""
    default = Latency(latency_ms, jitter, token_ms, prompt_token_ms)
    try:
        options = SimulatorOptions(
            models=tuple(name.strip() for name in models.split(",") if name.strip()),
            latency=default,
            model_latency=dict(parse_override(text, default) for text in model_latency or []),
            cache_tokens=cache_tokens,
            output_tokens=output_tokens,
            output_jitter=output_jitter,
            dimensions=dimensions,
            api_key=api_key,
            slots=slots,
            direct_queue=direct_queue,
            faults=tuple(_fault(text) for text in fault or []),
            keep_entries=ledger,
        )
        if not options.models:
            raise ValueError("--models names no model; give at least one")
        uvloop.run(serve(options, host, port))
    except (ValueError, OSError) as error:
        print(f"simulator: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


def main() -> None:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(run)
    app(prog_name="batchwright simulator")


if __name__ == "__main__":
    main()
