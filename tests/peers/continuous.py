"""Inference server: chat of `transformers serve` with continuous batching and a random model.

It needs a Python that has the packages transformers[serving] and torch. `python continuous.py PORT NAME`
serves the model as NAME on the CPU until SIGTERM. The weights are stored in four bits, and each step unpacks
all of them. That takes most of the time of a step, so a step takes nearly the same time for one sequence and
for sixteen, as on a GPU. The model has no end token: each response is as long as `max_tokens` says.
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

_LAYERS, _WIDTH, _HIDDEN, _HEAD = 12, 512, 2_048, 64
_GROUP = 64  # weights that have a common scale
_WINDOW = 8  # tokens that a token attends to: their number does not grow with the response
_CONTEXT_TOKENS = 4_096
_STEP_TOKENS = 256  # of all prompts and responses in one step
_CACHE_BLOCKS = 64
_TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


class _PackedLinear(torch.nn.Module):
    """Linear layer without bias whose weights are stored in four bits, and unpacked in each call."""

    def __init__(self, weights: Any) -> None:
        torch.nn.Module.__init__(self)
        groups = weights.detach().view(len(weights), -1, _GROUP)
        self.scales = groups.abs().amax(-1, keepdim=True) / 7
        codes = (groups / self.scales + 8).round().to(torch.uint8).view(len(weights), -1)
        self.codes = codes[:, ::2] | codes[:, 1::2] << 4

    def forward(self, inputs: Any) -> Any:
        codes = torch.stack((self.codes & 15, self.codes >> 4), -1).view(*self.scales.shape[:2], _GROUP)
        weights = codes.to(inputs.dtype).sub_(8).mul_(self.scales)
        return torch.nn.functional.linear(inputs, weights.view(len(weights), -1))


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
    transformers.Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def pack_weights(model: Any) -> None:
    """Replace all linear layers of the model by layers whose weights are stored in four bits."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.Linear):
                setattr(module, name, _PackedLinear(child.weight))


def application(name: str, slots: int) -> Any:
    """Return the server as an ASGI application. `/metrics` tells how many requests are in a slot."""
    models = serving_models.ModelManager(
        device="cpu", attn_implementation="sdpa", continuous_batching=True, force_model=name
    )
    for loaded in models.loaded_models.values():
        pack_weights(loaded.model)
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
