"""A real small model behind chat completions as an OpenAI-compatible server gives them, in the loop of a test.

It can hold the model to a JSON schema of strings and integers, token by token, as such servers do.
"""

from __future__ import annotations

import asyncio
import json
import runpy
from pathlib import Path
from typing import Any

import torch
from aiohttp import web
from transformers import AutoModelForCausalLM, AutoTokenizer

PREPARE = Path(__file__).resolve().parents[2] / "examples" / "quickstart" / "prepare_model.py"
MAX_STRING_TOKENS = 8


class SmallModel:
    """SmolLM2-135M-Instruct from the package that the quickstart takes it from; greedy."""

    def __init__(self) -> None:
        quickstart = runpy.run_path(str(PREPARE))
        files = {"gguf_file": quickstart["GGUF_FILE"]}
        folder = quickstart["package_folder"]()
        self.tokenizer = AutoTokenizer.from_pretrained(folder, **files)
        self.model = AutoModelForCausalLM.from_pretrained(folder, **files, dtype=torch.float32).eval()

    def asked(self, messages: list[dict[str, str]]) -> str:
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def num_tokens(self, text: str) -> int:
        return len(self._ids(text))

    @torch.inference_mode()
    def say(self, text: str, max_tokens: int) -> str:
        """What comes next."""
        ids = torch.tensor([self._ids(text)])
        made = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False,
            pad_token_id=self.tokenizer.eos_token_id,
        )  # fmt: skip
        return str(self.tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True))

    def fill(self, text: str, schema: dict[str, Any]) -> str:
        """An object of this schema."""
        reply = ""
        for name, kind in schema["properties"].items():
            reply += f'{", " if reply else "{"}"{name}": '
            if kind["type"] == "string":
                reply += json.dumps(self.say(f'{text}{reply}"', MAX_STRING_TOKENS).split('"')[0])
            else:
                reply += self._number(text + reply, kind["minimum"], kind["maximum"])
        return reply + "}"

    def _number(self, text: str, low: int, high: int) -> str:
        """The likeliest, digit by digit."""
        number = ""
        while True:
            digits = [one for one in "0123456789" if number != "0" and low <= int(number + one) <= high]
            best = self._likeliest(text + number, digits + (["}", ","] if number else []))
            if best not in digits:
                return number
            number += best

    @torch.inference_mode()
    def _likeliest(self, text: str, choices: list[str]) -> str:
        logits = self.model(torch.tensor([self._ids(text)])).logits[0, -1]
        return max(choices, key=lambda one: logits[self._ids(one)[0]].item())

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)


class JudgingServer:
    """Answers `POST /v1/chat/completions` with the model, one request at a time. `replies`: its own words."""

    def __init__(self, model: SmallModel) -> None:
        self.replies: list[str] = []
        self._model, self._turn = model, asyncio.Lock()

    async def __aenter__(self) -> JudgingServer:
        self._runner = web.ServerRunner(web.Server(self._handle), shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        body = json.loads(await request.read())
        async with self._turn:
            return web.json_response(await asyncio.to_thread(self._complete, body))

    def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
        text = self._model.asked(body["messages"])
        wanted = body.get("response_format")
        if wanted is None:
            reply = self._model.say(text, body["max_tokens"])
        else:
            reply = self._model.fill(text, wanted["json_schema"]["schema"])
        self.replies.append(reply)
        asked, said = self._model.num_tokens(text), self._model.num_tokens(reply)
        message = {"role": "assistant", "content": reply}
        return {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": body["model"],
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said},
        }
