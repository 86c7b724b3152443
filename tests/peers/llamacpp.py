"""Inference server: the HTTP server of llama.cpp, from the package xllamacpp, with a tiny random model.

It needs a Python that has the packages xllamacpp, gguf and numpy. `python llamacpp.py PORT NAME` serves the
model as NAME on the CPU until SIGTERM: chat, completions, embeddings, messages and responses.
"""

import argparse
import importlib
import signal
import tempfile
from pathlib import Path
from typing import Any

tiny_model: Any = importlib.import_module("tiny_model")  # beside this file
xllamacpp: Any = importlib.import_module("xllamacpp")  # not among our libraries


def parameters(options: argparse.Namespace, model: Path) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {options.name}
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.n_parallel = options.slots
    params.n_ctx = options.context * options.slots  # they divide it
    params.n_threads_http = options.slots + options.spare_threads
    params.cache_ram_mib = options.host_cache_mib
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.embedding = True
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    params.endpoint_metrics = True
    params.fit_params = params.warmup = False
    params.verbosity = 1
    return params


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("name")
    parser.add_argument("--slots", type=int, default=4, help="requests that are processed at once")
    parser.add_argument("--context", type=int, default=4_096, help="tokens of a slot")
    parser.add_argument(
        "--host-cache-mib", type=int, default=0, help="memory for prompts of no slot; 0: none"
    )
    parser.add_argument("--spare-threads", type=int, default=8, help="connections beyond those of the slots")
    options = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # before the server starts its threads
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "tiny.gguf"
        tiny_model.write_model(model)
        server = xllamacpp.Server(parameters(options, model))
        signal.sigwait({signal.SIGTERM})
        del server  # it stops here


if __name__ == "__main__":
    main()
