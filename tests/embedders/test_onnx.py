"""Vectors of a model in a file: a real runtime, a real tokenizer, a model made here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers

from memctl.embedders.registry import make_embedder
from memctl.errors import UsageError
from memctl.inference.errors import ModelError
from memctl.inference.settings import Settings

WORDS = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "ada", "likes", "tea"])}
SIZE = 6
TABLE = np.random.default_rng(7).normal(size=(len(WORDS), SIZE)).astype(np.float32)


def write_model(folder: Path, *, inputs: tuple[str, ...] = ("input_ids", "attention_mask")) -> Path:
    """Write a model that gives each token its row of a table, and its tokenizer."""
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", inputs[0]], ["last_hidden_state"])],
        "table",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["b", "t"]) for name in inputs],
        [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["b", "t", SIZE])],
        [numpy_helper.from_array(TABLE, "table")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, folder / "model.onnx")
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "model.onnx"


def settings(path: object, **options: Any) -> Settings:
    return Settings("local", "onnx", {"path": str(path), **options}, family="embedders")


async def vectors(chosen: Settings, *texts: str) -> Any:
    async with make_embedder(chosen) as embedder:
        found = await embedder.embed(texts)
    return np.array([list(vector) for vector in found.vectors], dtype=np.float32)


def unit(row: Any) -> Any:
    return row / np.linalg.norm(row)


async def test_tokens_are_averaged(tmp_path: Path) -> None:
    path = write_model(tmp_path)
    short, long = await vectors(settings(path), "tea", "ada likes tea")
    assert np.allclose(short, unit(TABLE[4]), atol=1e-6)  # its padding counts for nothing
    assert np.allclose(long, unit(TABLE[2:5].mean(axis=0)), atol=1e-6)


async def test_first_token_stands_for_the_text(tmp_path: Path) -> None:
    path = write_model(tmp_path)
    [found] = await vectors(settings(path, pooling="cls"), "likes tea")
    assert np.allclose(found, unit(TABLE[3]), atol=1e-6)


async def test_long_text_is_cut(tmp_path: Path) -> None:
    path = write_model(tmp_path)
    [found] = await vectors(settings(path, max_tokens=2), "ada ada " + "tea " * 1000)
    assert np.allclose(found, unit(TABLE[2]), atol=1e-6)


async def test_hostile_texts_have_vectors(tmp_path: Path) -> None:
    path = write_model(tmp_path, inputs=("input_ids",))
    found = await vectors(settings(path), "\0", "half \ud83d", "x" * 100_000, " ", "会话 😀")
    assert np.allclose(np.linalg.norm(found, axis=1)[:3], 1, atol=1e-5)


async def test_model_is_named_after_its_folder(tmp_path: Path) -> None:
    path = write_model(tmp_path)
    async with make_embedder(settings(path)) as embedder:
        assert embedder.model == tmp_path.name
        assert await embedder.dimensions() == SIZE
    assert make_embedder(settings(path, model="minilm")).model == "minilm"


async def test_values_that_are_not_finite_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "TABLE", np.full_like(TABLE, np.nan))
    path = write_model(tmp_path)
    with pytest.raises(ModelError, match="not finite"):
        await vectors(settings(path), "tea")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"model.onnx": b"no model"}, "model.onnx cannot be loaded"),
        ({"model.onnx": None}, "model.onnx cannot be loaded"),
        ({"tokenizer.json": b"{}"}, "is not a valid tokenizer"),
        ({"tokenizer.json": None}, "tokenizer.json cannot be read"),
    ],
)
async def test_damaged_model_is_one_line(
    tmp_path: Path, damage: dict[str, bytes | None], said: str
) -> None:
    path = write_model(tmp_path)
    for name, content in damage.items():
        (tmp_path / name).unlink()
        if content is not None:
            (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=said) as caught:
        await vectors(settings(path), "tea")
    assert "\n" not in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": None}, "embedders.local has no path"),
        ({"pooling": "max"}, "pooling must be one of mean, cls"),
        ({"max_tokens": 0}, "max_tokens must be a whole number of 1 or more"),
        ({"batch": "many"}, "batch must be a whole number"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], said: str) -> None:
    given = {"path": "/srv/model.onnx"} | options
    chosen = {name: value for name, value in given.items() if value is not None}
    with pytest.raises(UsageError, match=said):
        make_embedder(Settings("local", "onnx", chosen, family="embedders"))
