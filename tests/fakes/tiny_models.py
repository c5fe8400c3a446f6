"""Models of two kinds that the small one is not of, made here: random weights, a few hundred kB, no download.

They say nothing sensible; what matters is how the server keeps what they have read. The tokenizer is the
beginning of the small model's.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFWriter

from boxmaker_adapters.embedded_llama import small_model

WINDOW = 32
"""Tokens that a layer of the first kind looks back at most."""
_TOKENS = 2048
_WIDTH, _HEADS, _HEAD, _INNER = 32, 2, 16, 64
_SEED = 1


class _Writer:
    """A model file of kind `arch`; sizes are those above."""

    def __init__(self, path: Path, arch: str, layers: int, heads_kv: int | list[int]) -> None:
        self._gguf: Any = GGUFWriter(path, arch)
        self._random = np.random.default_rng(_SEED)
        self._gguf.add_context_length(8192)
        self._gguf.add_embedding_length(_WIDTH)
        self._gguf.add_block_count(layers)
        self._gguf.add_feed_forward_length(_INNER)
        self._gguf.add_head_count(_HEADS)
        self._gguf.add_head_count_kv(heads_kv)
        self._gguf.add_key_length(_HEAD)
        self._gguf.add_value_length(_HEAD)
        self._gguf.add_layer_norm_rms_eps(1e-6)
        self._gguf.add_rope_freq_base(10000.0)
        self._add_tokenizer()
        self.weight("token_embd", _TOKENS, _WIDTH)

    def _add_tokenizer(self) -> None:
        small = _tokenizer()
        self._gguf.add_tokenizer_model(small["model"])
        self._gguf.add_tokenizer_pre(small["pre"])
        self._gguf.add_token_list(small["tokens"])
        self._gguf.add_token_types(small["token_type"])
        self._gguf.add_token_merges(small["merges"])
        self._gguf.add_bos_token_id(small["bos_token_id"])
        self._gguf.add_eos_token_id(small["eos_token_id"])
        self._gguf.add_add_bos_token(False)

    @property
    def gguf(self) -> Any:
        return self._gguf

    def weight(self, name: str, *shape: int) -> None:
        """Rows first, as numpy has it."""
        self._gguf.add_tensor(f"{name}.weight", self._random.normal(0, 0.3, shape).astype(np.float32))

    def norm(self, name: str, size: int = _WIDTH) -> None:
        self._gguf.add_tensor(f"{name}.weight", np.ones(size, np.float32))

    def attention(self, block: str) -> None:
        for part in ("attn_q", "attn_k", "attn_v"):
            self.weight(f"{block}.{part}", _HEADS * _HEAD, _WIDTH)
        self.weight(f"{block}.attn_output", _WIDTH, _HEADS * _HEAD)
        self.norm(f"{block}.attn_q_norm", _HEAD)
        self.norm(f"{block}.attn_k_norm", _HEAD)

    def feed_forward(self, block: str) -> None:
        self.norm(f"{block}.ffn_norm")
        self.weight(f"{block}.ffn_gate", _INNER, _WIDTH)
        self.weight(f"{block}.ffn_up", _INNER, _WIDTH)
        self.weight(f"{block}.ffn_down", _WIDTH, _INNER)

    def write(self) -> None:
        self._gguf.write_header_to_file()
        self._gguf.write_kv_data_to_file()
        self._gguf.write_tensors_to_file()
        self._gguf.close()


@cache
def _tokenizer() -> dict[str, Any]:
    """The first tokens of the small model's, and the merges among them. It takes seconds to read."""
    reader = GGUFReader(small_model())
    names = ("model", "pre", "tokens", "token_type", "merges", "bos_token_id", "eos_token_id")
    found = {name: reader.fields[f"tokenizer.ggml.{name}"].contents() for name in names}
    for name in ("tokens", "token_type"):
        found[name] = found[name][:_TOKENS]
    known = set(found["tokens"])
    found["merges"] = [pair for pair in found["merges"] if {*pair.split(" "), pair.replace(" ", "")} <= known]
    return found


def sliding_window(path: Path) -> Path:
    """Five layers of six look back `WINDOW` tokens, as Gemma 3's do."""
    model = _Writer(path, "gemma3", 6, _HEADS)
    model.gguf.add_sliding_window(WINDOW)
    model.norm("output_norm")
    for layer in range(6):
        block = f"blk.{layer}"
        model.norm(f"{block}.attn_norm")
        model.attention(block)
        model.norm(f"{block}.post_attention_norm")
        model.feed_forward(block)
        model.norm(f"{block}.post_ffw_norm")
    model.write()
    return path


def hybrid(path: Path) -> Path:
    """A layer of attention behind one with a state that runs along, as LFM2 has them."""
    short = 3
    model = _Writer(path, "lfm2", 2, [0, _HEADS])
    model.gguf.add_shortconv_l_cache(short)
    model.norm("token_embd_norm")
    for layer in range(2):
        block = f"blk.{layer}"
        model.norm(f"{block}.attn_norm")
        if layer:
            model.attention(block)
        else:
            model.weight(f"{block}.shortconv.conv", _WIDTH, short)
            model.weight(f"{block}.shortconv.in_proj", 3 * _WIDTH, _WIDTH)
            model.weight(f"{block}.shortconv.out_proj", _WIDTH, _WIDTH)
        model.feed_forward(block)
    model.write()
    return path
