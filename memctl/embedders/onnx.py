"""An embedder with a model in an ONNX file, which runs locally."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnxruntime

from memctl.embedder import Embedded, Embedder
from memctl.errors import UsageError
from memctl.inference import tables
from memctl.inference.errors import ModelError
from memctl.inference.settings import Settings, Usage, path_of
from memctl.inference.text import encodable
from memctl.inference.tokens import load_tokenizer
from memctl.machine.concurrency import in_thread


class OnnxEmbedder(Embedder):
    """An embedder that runs a transformer, and makes a unit vector of its output for each text.

    The setting ``path`` names the ``model.onnx``.  The setting ``tokenizer`` names the
    ``tokenizer.json``; the default is ``tokenizer.json`` next to the model.

    The model may have the inputs ``input_ids``, ``attention_mask`` and ``token_type_ids``, and no
    others.  Its first output holds a vector for each text, or a vector for each token.  The vector
    of a text is the mean of its token vectors, or the vector of its first token if the setting
    ``pooling`` is ``cls``.
    """

    kind = "onnx"
    concurrency = 1  # each call uses every core

    def __init__(self, settings: Settings) -> None:
        self.name = settings.name
        table = settings.read(tables.OnnxEmbedder)
        self._path = Path(table.path).expanduser()
        self._tokenizer_path = path_of(table.tokenizer) or self._path.with_name("tokenizer.json")
        self.model = table.model or self._path.parent.name
        self.batch = table.batch
        self._table = table

    async def __aenter__(self) -> Self:
        await in_thread(self._load)
        return self

    def _load(self) -> None:
        self._tokenizer = load_tokenizer(self._tokenizer_path)
        self._tokenizer.enable_truncation(self._table.max_tokens)
        self._tokenizer.enable_padding()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._table.threads
        options.log_severity_level = 4
        try:
            self._session = onnxruntime.InferenceSession(
                str(self._path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the library raises many unrelated classes
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UsageError(
                f"the model {self._path} cannot be loaded: {reason}", "name a model.onnx"
            ) from error
        self._inputs = {one.name for one in self._session.get_inputs()}

    async def embed(self, texts: Sequence[str]) -> Embedded:
        return await in_thread(lambda: self._embed(texts))

    def _embed(self, texts: Sequence[str]) -> Embedded:
        encoded = self._tokenizer.encode_batch([encodable(text) for text in texts])
        mask = np.array([one.attention_mask for one in encoded], dtype=np.int64)
        given = {
            "input_ids": np.array([one.ids for one in encoded], dtype=np.int64),
            "attention_mask": mask,
            "token_type_ids": np.array([one.type_ids for one in encoded], dtype=np.int64),
        }
        try:
            found = self._session.run(
                None, {name: value for name, value in given.items() if name in self._inputs}
            )[0]
        except Exception as error:  # as above
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ModelError("rejected", f"the model failed: {reason}") from error
        vectors = self._pooled(np.asarray(found, dtype=np.float32), mask)
        if not np.isfinite(vectors).all():
            raise ModelError("rejected", "the model gives values that are not finite")
        tokens = Usage(int(mask.sum()), 0, exact=True)
        return Embedded([array("f", row.tobytes()) for row in vectors], tokens)

    def _pooled(self, found: Any, mask: Any) -> Any:
        """Return one unit vector for each text.

        ``found`` is the output of the model, ``mask`` tells which tokens belong to a text.
        """
        if found.ndim == 3:
            if self._table.pooling == "cls":
                found = found[:, 0]
            else:
                weights = mask[:, :, None].astype(np.float32)
                found = (found * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1)
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        return (found / np.maximum(lengths, 1e-12)).astype(np.float32)
