"""Prompt embeddings of Wan2.1: UMT5-XXL through transformers, kept on disk so that a sweep loads the encoder once.

The encoder is loaded when a prompt is met that no earlier run has encoded, encodes all prompts it is given, and is
dropped. Cleaning, the limit of 512 tokens and the zero rows past the prompt are those of Wan-Video/Wan2.1, which cuts a
longer prompt where this refuses it.
"""

import html
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fastcache.encoders import folder_hash
from fastcache.errors import UserError
from fastcache.models.wan.kept import Kept
from fastcache.models.wan.loading import first_line, free, load_part


def clean(prompt: str) -> str:
    """Broken unicode and HTML entities mended, whitespace to single blanks."""
    import ftfy

    return re.sub(r"\s+", " ", html.unescape(html.unescape(ftfy.fix_text(prompt)))).strip()


class PromptEncoder:
    """prompt -> embeddings [1, text_len, text_dim]; ``encoder`` and ``tokenizer`` are local folders.

    The seed of a call plays no part: words say all there is. Raises UserError on a prompt of more than text_len tokens
    and on an encoder that cannot be loaded or is of another width.
    """

    def __init__(
        self,
        encoder: Path,
        tokenizer: Path,
        text_len: int,
        text_dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ):
        self.encoder, self.tokenizer, self.device = encoder, tokenizer, device
        self.text_len, self.text_dim = text_len, text_dim
        self.dtype = torch.bfloat16 if dtype == torch.float16 else dtype  # UMT5 overflows in float16
        self.kept = Kept("prompts", folder_hash(encoder), folder_hash(tokenizer), str(self.dtype))
        self.known: dict[str, Tensor] = {}

    def __call__(self, prompt: str, seed: int = 0) -> Tensor:
        self.prepare([prompt])
        rows = self.known[clean(prompt)]
        return torch.cat((rows, rows.new_zeros(self.text_len - len(rows), self.text_dim)))[None]

    def prepare(self, prompts: Sequence[str]) -> None:
        """Encode what neither this process nor an earlier one has; the encoder is in memory only meanwhile."""
        missing: dict[str, list[int]] = {}
        for text in dict.fromkeys(map(clean, prompts)):
            if text in self.known:
                continue
            rows = self.kept.read(text)
            if rows is not None:
                self.known[text] = rows
            else:
                missing[text] = self._tokens(text)  # refuses a long prompt before the encoder is loaded
        if missing:
            self._encode(missing)
        if wrong := {rows.shape[1] for rows in self.known.values()} - {self.text_dim}:
            raise UserError(
                f"model.text_encoder={self.encoder} gives rows of {wrong.pop()}; the DiT reads {self.text_dim}"
            )

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
                f"the prompt {text[:40]!r}... has {len(ids)} tokens; {self.text_len} are the most. Make it shorter"
            )
        return ids

    @torch.inference_mode()
    def _encode(self, tokens: dict[str, list[int]]) -> None:
        """Rows [tokens, text_dim] of each prompt, one prompt at a time: without padding no mask is needed."""
        from transformers import UMT5EncoderModel

        model = load_part(UMT5EncoderModel, "text_encoder", self.encoder, dtype=self.dtype)
        model.to(self.device)
        for text, ids in tokens.items():
            inputs = torch.tensor([ids], device=self.device)
            out = model(input_ids=inputs, attention_mask=torch.ones_like(inputs))
            self.known[text] = out.last_hidden_state[0].cpu().clone()
            self.kept.write(text, self.known[text])
        del model, out
        free()
