"""Inference server: chat of `transformers serve` with continuous batching and a tiny random model.

It needs a Python that has the packages transformers[serving] and torch. `python continuous.py PORT NAME`
serves the model as NAME on the CPU until SIGTERM. The model has many small layers, so that a step takes
nearly the same time for one sequence and for eight, as on a GPU. The model has no end token: each response is
as long as `max_tokens` says.
"""

import argparse
import importlib
import os
import tempfile
from pathlib import Path
from typing import Any

# Not among our libraries.
fastapi: Any = importlib.import_module("fastapi")
serving: Any = importlib.import_module("transformers.cli.serving.server")
serving_chat: Any = importlib.import_module("transformers.cli.serving.chat_completion")
serving_models: Any = importlib.import_module("transformers.cli.serving.model_manager")
serving_utils: Any = importlib.import_module("transformers.cli.serving.utils")
tokenizers: Any = importlib.import_module("tokenizers")
torch: Any = importlib.import_module("torch")
transformers: Any = importlib.import_module("transformers")
uvicorn: Any = importlib.import_module("uvicorn")

_LAYERS, _WIDTH, _HIDDEN, _HEAD = 192, 32, 64, 8
_WINDOW = 8  # tokens that a token attends to: their number does not grow with the response
_CONTEXT_TOKENS = 4_096
_STEP_TOKENS = 256  # of all prompts and responses in one step
_CACHE_BLOCKS = 64
_TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def write_model(folder: Path) -> None:
    """Write the model and its tokenizer. One byte is one token."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={byte: number for number, byte in enumerate(alphabet)}, merges=[])
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    saved = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    saved.chat_template = _TEMPLATE
    saved.save_pretrained(folder)
    config = transformers.Qwen3Config(
        vocab_size=len(alphabet),
        hidden_size=_WIDTH,
        intermediate_size=_HIDDEN,
        num_hidden_layers=_LAYERS,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=_HEAD,
        use_sliding_window=True,
        sliding_window=_WINDOW,
        layer_types=["sliding_attention"] * _LAYERS,
        max_position_embeddings=_CONTEXT_TOKENS,
    )
    torch.manual_seed(1)
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)


def application(name: str, slots: int) -> Any:
    """Return the server as an ASGI application. `/metrics` tells how many requests are in a slot."""
    models = serving_models.ModelManager(
        device="cpu", attn_implementation="sdpa", continuous_batching=True, force_model=name
    )
    generation = serving_utils.GenerationState(
        continuous_batching=True,
        cb_config=transformers.ContinuousBatchingConfig(
            max_requests_per_batch=slots, max_batch_tokens=_STEP_TOKENS, num_blocks=_CACHE_BLOCKS
        ),
    )
    chat = serving_chat.ChatCompletionHandler(model_manager=models, generation_state=generation)
    others = dict.fromkeys(
        ("completion_handler", "response_handler", "transcription_handler", "systemone_handler")
    )
    served = serving.build_server(models, chat, generation_state=generation, **others)

    @served.get("/metrics", response_class=fastapi.responses.PlainTextResponse)
    async def metrics() -> str:  # pyright: ignore[reportUnusedFunction]
        scheduler = generation.get_manager(name, use_cb=True).scheduler
        return f"requests_processing {len(scheduler.active_requests)}\n"

    return served


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("name")
    parser.add_argument("--slots", type=int, default=4, help="requests that are processed at once")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # the name of a model is its path
        write_model(Path(options.name))
        uvicorn.run(
            application(options.name, options.slots),
            host="127.0.0.1",
            port=options.port,
            log_level="warning",
        )


if __name__ == "__main__":
    main()
