"""Writes a language model with random weights as a GGUF file: under 2 MB, in less than a second.

The vocabulary consists of the 256 bytes and a few control tokens. One byte is one token, so the length of a
prompt in tokens follows from its text. Responses consist of printable ASCII characters.

It needs a Python that has the packages gguf and numpy.
"""

import importlib
from pathlib import Path
from typing import Any

gguf: Any = importlib.import_module("gguf")  # not among our libraries
np: Any = importlib.import_module("numpy")

_LAYERS, _HEADS, _WIDTH, _HIDDEN = 2, 4, 128, 256
_CONTEXT_TOKENS = 16_384
_SEED = 1
_END, _CONTROL = 256, ("<|end|>", "<|begin|>", "<|turn|>", "<|reply|>")
_TEMPLATE = (
    "{% for message in messages %}<|turn|>{{ message['role'] }}\n{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|reply|>{% endif %}"
)
# Bias of the output. A response has no control characters and no bytes beyond ASCII, and ends sometimes.
_NEVER, _SELDOM = -20.0, -2.0


def write_model(path: Path) -> None:
    """Write the model. Equal versions of numpy write equal files."""
    out = gguf.GGUFWriter(path, "llama")
    _describe(out)
    _add_weights(out, np.random.default_rng(_SEED))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _describe(out: Any) -> None:
    tokens = _tokens()
    kinds = [gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL] * len(_CONTROL) + [gguf.TokenType.NORMAL]
    out.add_name("tiny-random")
    out.add_context_length(_CONTEXT_TOKENS)
    out.add_embedding_length(_WIDTH)
    out.add_block_count(_LAYERS)
    out.add_feed_forward_length(_HIDDEN)
    out.add_head_count(_HEADS)
    out.add_head_count_kv(_HEADS)
    out.add_rope_dimension_count(_WIDTH // _HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_file_type(gguf.LlamaFileType.ALL_F32)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(tokens)
    out.add_token_types(kinds)
    out.add_token_merges([f"{tokens[ord(' ')]} {tokens[ord(' ')]}"])
    out.add_eos_token_id(_END)
    out.add_bos_token_id(_END + 1)
    out.add_add_bos_token(False)
    out.add_chat_template(_TEMPLATE)


def _tokens() -> list[str]:
    """Return the bytes as GPT-2's vocabulary spells them, the control tokens, and two spaces.

    llama.cpp requires at least one token that is merged from two others.
    """
    plain = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    spelled = [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]
    return [*spelled, *_CONTROL, spelled[ord(" ")] * 2]


def _add_weights(out: Any, random: Any) -> None:
    """Add random weights.

    Dimension 0 is 4.0 at each token, and no layer changes it. The output matrix reads it as a bias.
    """

    def matrix(rows: int, columns: int, scale: float = 1.0) -> Any:
        return (random.standard_normal((rows, columns)) * scale / np.sqrt(columns)).astype(np.float32)

    def without_dimension_0(weights: Any) -> Any:
        weights[0] = 0.0
        return weights

    count = len(_tokens())
    embedding = random.standard_normal((count, _WIDTH)).astype(np.float32)
    embedding[:, 0] = 4.0
    out.add_tensor("token_embd.weight", embedding)
    for layer in range(_LAYERS):
        block = f"blk.{layer}"
        out.add_tensor(f"{block}.attn_norm.weight", np.ones(_WIDTH, np.float32))
        for name in ("attn_q", "attn_k", "attn_v"):
            out.add_tensor(f"{block}.{name}.weight", matrix(_WIDTH, _WIDTH))
        out.add_tensor(f"{block}.attn_output.weight", without_dimension_0(matrix(_WIDTH, _WIDTH)))
        out.add_tensor(f"{block}.ffn_norm.weight", np.ones(_WIDTH, np.float32))
        for name in ("ffn_gate", "ffn_up"):
            out.add_tensor(f"{block}.{name}.weight", matrix(_HIDDEN, _WIDTH))
        out.add_tensor(f"{block}.ffn_down.weight", without_dimension_0(matrix(_WIDTH, _HIDDEN)))
    out.add_tensor("output_norm.weight", np.ones(_WIDTH, np.float32))
    output = matrix(count, _WIDTH, scale=2.0)
    output[:, 0] = _NEVER
    output[ord(" ") : ord("~") + 1, 0] = 0.0
    output[_END, 0] = _SELDOM
    out.add_tensor("output.weight", output)
