"""Talk to a trained model: what `tunecli chat` runs on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Self

import torch

from .errors import ModelError
from .model.loading import is_adapter_dir

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


class ChatSession:
    """A model, its tokenizer, and the conversation so far.

    Args:
        model: A causal language model.
        tokenizer: Its tokenizer, with a chat template.
        system: System prompt, if any.
        max_new_tokens: Longest reply.
        temperature: 0 for the likeliest token each time, else sampling.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        system: str | None = None,
        max_new_tokens: int = 256,
        temperature: float = 0.0,
    ) -> None:
        if tokenizer.chat_template is None:
            raise ModelError("the tokenizer has no chat template: this model cannot chat")
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.max_new_tokens = max_new_tokens
        self.temperature = temperature
        self._system = [{"role": "system", "content": system}] if system else []
        self.messages: list[dict[str, str]] = []
        self.reset()

    @classmethod
    def load(cls, path: str | Path, trust_remote_code: bool = False, **options: Any) -> Self:
        """Load a final model, a merged model or an adapter from its directory (or the Hub).

        Raises:
            ModelError: It cannot be loaded.
        """
        from transformers import AutoModelForCausalLM, AutoTokenizer

        source = str(Path(path).expanduser()) if Path(path).expanduser().exists() else str(path)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        base = source
        if is_adapter_dir(source):
            settings = json.loads((Path(source) / "adapter_config.json").read_text("utf-8"))
            base = settings["base_model_name_or_path"]
        try:
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
            model = AutoModelForCausalLM.from_pretrained(
                base, dtype="auto", trust_remote_code=trust_remote_code
            )
            if base != source:
                model = _with_adapter(model, tokenizer, source)
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            raise ModelError(f"{source} cannot be loaded for chat: {error}") from error
        return cls(model.to(device), tokenizer, **options)

    def reset(self) -> None:
        """Forget the conversation."""
        self.messages = list(self._system)

    def ask(self, question: str) -> str:
        """Return the whole reply to `question` and remember both."""
        return "".join(self.stream(question))

    def stream(self, question: str) -> Iterator[str]:
        """Yield the reply to `question` piece by piece, and remember both at the end."""
        from transformers import TextIteratorStreamer

        self.messages.append({"role": "user", "content": question})
        inputs = self.tokenizer.apply_chat_template(
            self.messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        ).to(self.model.device)
        streamer = TextIteratorStreamer(
            self.tokenizer, skip_prompt=True, skip_special_tokens=True, timeout=None
        )
        arguments: dict[str, Any] = {
            "input_ids": inputs["input_ids"],
            "attention_mask": inputs["attention_mask"],
            "streamer": streamer,
            "max_new_tokens": self.max_new_tokens,
            "do_sample": self.temperature > 0,
        }
        if self.temperature > 0:
            arguments["temperature"] = self.temperature
        failures: list[BaseException] = []

        def generate() -> None:
            try:
                self.model.generate(**arguments)
            except BaseException as error:  # handed to the caller below
                failures.append(error)
                streamer.end()

        # The streamer hands text from the thread that generates to the one that prints.
        thread = Thread(target=generate, daemon=True)
        thread.start()
        pieces = []
        for piece in streamer:
            pieces.append(piece)
            yield piece
        thread.join()
        if failures:
            raise failures[0]
        self.messages.append({"role": "assistant", "content": "".join(pieces).strip()})


def _with_adapter(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, source: str
) -> PreTrainedModel:
    from peft import PeftModel
    from transformers import GenerationConfig

    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    wrapped = PeftModel.from_pretrained(model, source)
    merged: PreTrainedModel = wrapped.merge_and_unload()
    if (Path(source) / "generation_config.json").is_file():
        merged.generation_config = GenerationConfig.from_pretrained(source)
    return merged
