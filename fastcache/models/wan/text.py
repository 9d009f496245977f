"""Prompt embeddings of Wan2.1: UMT5-XXL through transformers, kept on disk so that the encoder is loaded once.

The encoder is loaded when a prompt is met that no earlier run has encoded, encodes all prompts it is given, and is
dropped. Cleaning, the limit of 512 tokens and the zero rows past the prompt are those of Wan-Video/Wan2.1.
"""

import hashlib
import html
import json
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fastcache.errors import UserError
from fastcache.files import cache_dir, sha256, written_aside
from fastcache.models.wan.loading import first_line, free, load_part


def clean(prompt: str) -> str:
    """Broken unicode and HTML entities mended, whitespace to single blanks."""
    import ftfy

    return re.sub(r"\s+", " ", html.unescape(html.unescape(ftfy.fix_text(prompt)))).strip()


class PromptEncoder:
    """prompt -> embeddings [1, text_len, text_dim]; ``encoder`` and ``tokenizer`` are local folders.

    The seed of ``__call__`` plays no part: words say all there is. Raises UserError on a prompt of more than text_len
    tokens and on an encoder that cannot be loaded or is of another width.
    """

    def __init__(
        self, encoder: Path, tokenizer: Path, text_len: int, text_dim: int, dtype: torch.dtype, device: torch.device | str
    ):
        self.encoder, self.tokenizer, self.device = encoder, tokenizer, device
        self.text_len, self.text_dim = text_len, text_dim
        self.dtype = torch.bfloat16 if dtype == torch.float16 else dtype  # UMT5 overflows in float16
        self.identity = [sha256(encoder), sha256(tokenizer), str(self.dtype), text_len]
        self.known: dict[str, Tensor] = {}

    def __call__(self, prompt: str, seed: int = 0) -> Tensor:
        self.prepare([prompt])
        rows = self.known[clean(prompt)]
        return torch.cat((rows, rows.new_zeros(self.text_len - len(rows), self.text_dim)))[None]

    def prepare(self, prompts: Sequence[str]) -> None:
        """Encode what neither this process nor an earlier one has; the encoder is in memory only meanwhile."""
        texts = [text for text in dict.fromkeys(map(clean, prompts)) if text not in self.known]
        found = {text: rows for text in texts if (rows := self._read(text)) is not None}
        self.known |= found
        if missing := [text for text in texts if text not in found]:
            tokens = {text: self._tokens(text) for text in missing}  # refuses a long prompt before the encoder is loaded
            for text, rows in self._encode(tokens).items():
                self._write(text, rows)
                self.known[text] = rows

    def path(self, text: str) -> Path:
        """Where the embeddings of a cleaned prompt are kept."""
        key = hashlib.sha256(json.dumps([text, *self.identity]).encode()).hexdigest()
        return cache_dir() / "prompts" / f"{key}.safetensors"

    def _tokens(self, text: str) -> list[int]:
        from transformers import AutoTokenizer

        if not hasattr(self, "_tokenizer"):
            try:
                self._tokenizer = AutoTokenizer.from_pretrained(self.tokenizer, local_files_only=True)
            except Exception as error:  # the library raises whatever its readers do
                raise UserError(f"model.tokenizer={self.tokenizer} cannot be loaded: {first_line(error)}") from None
        ids = self._tokenizer(text, verbose=False).input_ids
        if len(ids) > self.text_len:
            raise UserError(
                f"the prompt {text[:40]!r}... has {len(ids)} tokens; Wan reads at most {self.text_len}. Shorten it"
            )
        return ids

    @torch.inference_mode()
    def _encode(self, tokens: dict[str, list[int]]) -> dict[str, Tensor]:
        """Rows [tokens, text_dim] of each prompt, one prompt at a time: without padding no mask is needed."""
        from transformers import UMT5EncoderModel

        model = load_part(UMT5EncoderModel, "text_encoder", self.encoder, dtype=self.dtype)
        if model.config.d_model != self.text_dim:
            raise UserError(
                f"model.text_encoder={self.encoder} gives rows of {model.config.d_model}; the DiT reads {self.text_dim}"
            )
        model.to(self.device)
        rows = {}
        for text, ids in tokens.items():
            inputs = torch.tensor([ids], device=self.device)
            rows[text] = model(input_ids=inputs, attention_mask=torch.ones_like(inputs)).last_hidden_state[0].cpu().clone()
        del model
        free()
        return rows

    def _read(self, text: str) -> Tensor | None:
        """Kept rows; None where there are none or, with a warning, where the file is damaged."""
        path = self.path(text)
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                rows, told = file.get_tensor("rows"), (file.metadata() or {}).get("sha256")
            if rows.shape[1:] == (self.text_dim,) and rows.dtype == self.dtype and told == _digest(rows):
                return rows
        except (SafetensorError, OSError):
            pass
        warnings.warn(f"{path} is damaged: the prompt {text[:40]!r} is encoded again", stacklevel=2)
        return None

    def _write(self, text: str, rows: Tensor) -> None:
        path = self.path(text)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with written_aside(path) as aside:
                save_file({"rows": rows.contiguous()}, aside, metadata={"sha256": _digest(rows)})
        except (OSError, SafetensorError) as error:
            warnings.warn(f"prompt embeddings cannot be kept in {path.parent}: {error}", stacklevel=2)


def _digest(rows: Tensor) -> str:
    return hashlib.sha256(rows.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()

