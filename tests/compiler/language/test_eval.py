"""`ourcc eval`: perplexity is that of `transformers` in the same windows; engines side by side; texts that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ourcc
from ourcc.compiler.cli.main import run
from ourcc.compiler.commands.eval import evaluate, read_text
from ourcc.runtime.language.scoring import windows

from .conftest import model_of, save, tokenizer_of

TEXT = "why is the sea so blue and the sky so green, 🙂 is it the sky? " * 8


def engine_of(folder: Path, **changed: Any) -> tuple[Any, Path]:
    """A model, and its engine with a tokenizer."""
    model = model_of("llama", vocab_size=297, **changed)
    save(model, folder)
    tokenizer_of(folder)
    path = folder / "m.ourcc"
    ourcc.build(folder, tune="off").save(path)
    return model, path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, Path]:
    folder = tmp_path_factory.mktemp("eval")
    text = folder / "text.txt"
    text.write_text(TEXT, encoding="utf-8")
    return *engine_of(folder / "m"), text


def expected(model: Any, tokens: list[int], window: int, stride: int) -> np.ndarray[Any, Any]:
    """Logarithms of all tokens' probabilities at every place, f64[n - 1, vocabulary]."""
    rows = []
    with torch.no_grad():
        for begin, first, end in windows(len(tokens), window, stride):
            logits = model(torch.tensor([tokens[begin:end]])).logits[0].double()
            rows.append(torch.log_softmax(logits[first - begin - 1 : -1], dim=-1).numpy())
    return np.concatenate(rows)


@pytest.mark.parametrize("sizes", [(), ("--window", "24", "--stride", "10"), ("--window", "40")])
def test_perplexity_is_that_of_transformers(
    sizes: tuple[str, ...], made: tuple[Any, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model, path, text = made
    assert run(["eval", str(path), str(text), "--json", *sizes]) == 0
    told = json.loads(capsys.readouterr().out)
    tokens = ourcc.load(path).tokenizer.encode(TEXT)  # type: ignore[attr-defined]
    window = int(sizes[1]) if sizes else 64
    stride = int(sizes[3]) if len(sizes) > 2 else window // 2
    rows = expected(model, tokens, window, stride)
    nats = -rows[np.arange(len(rows)), tokens[1:]].mean()
    assert len(tokens) > 2 * window  # several windows
    assert told["perplexity"] == pytest.approx(np.exp(nats), rel=1e-5)
    assert told["bits_per_byte"] == pytest.approx(nats / np.log(2) * len(tokens) / len(TEXT.encode()), rel=1e-5)
    assert told["top1"] == pytest.approx((rows.argmax(1) == tokens[1:]).mean(), abs=1e-6)
    assert (told["tokens"], told["scored"], told["bytes"]) == (len(tokens), len(tokens) - 1, len(TEXT.encode()))
    assert (told["window"], told["stride"]) == (window, stride)


def test_two_engines_side_by_side(made: tuple[Any, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, path, text = made
    other, second = engine_of(tmp_path / "o", rope_theta=70.0)
    assert run(["eval", str(path), str(text), "--against", str(second), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    tokens = ourcc.load(path).tokenizer.encode(TEXT)  # type: ignore[attr-defined]
    p, q = (expected(each, tokens, 64, 32) for each in (model, other))
    forward, backward = (np.exp(p) * (p - q)).sum(1), (np.exp(q) * (q - p)).sum(1)
    at = np.arange(len(p)), tokens[1:]
    assert told["top1_agreement"] == pytest.approx((p.argmax(1) == q.argmax(1)).mean(), abs=1e-6)
    assert told["other_perplexity"] == pytest.approx(np.exp(-q[at].mean()), rel=1e-5)
    for row, values in zip(told["differences"], (forward, backward, np.abs(p[at] - q[at])), strict=True):
        assert row["mean"] == pytest.approx(values.mean(), rel=1e-3) and row["greatest"] == pytest.approx(values.max(), rel=1e-3)
        assert values[row["at_token"] - 1] == pytest.approx(values.max(), rel=1e-3)
    place = told["places"][0]
    tokenizer = ourcc.load(path).tokenizer  # type: ignore[attr-defined]
    assert place["at_token"] == told["differences"][0]["at_token"] and place["text"] == repr(tokenizer.decode([tokens[place["at_token"]]]))
    assert place["other_expects"] == repr(tokenizer.decode([int(q[place["at_token"] - 1].argmax())], special=True))
    assert run(["eval", str(path), str(text), "--against", str(path), "--json"]) == 0
    same = json.loads(capsys.readouterr().out)
    assert same["top1_agreement"] == 1 and [row["greatest"] for row in same["differences"]] == [0, 0, 0]


def test_what_begins_a_text_is_read_and_not_scored(tmp_path: Path) -> None:
    model = model_of("llama", vocab_size=297)
    folder = save(model, tmp_path / "m")
    tokenizer_of(folder, begins=True)
    engine: Any = ourcc.build(folder, tune="off")
    engine.save(tmp_path / "m.ourcc")
    (tmp_path / "t.txt").write_text("i")
    facts = evaluate(tmp_path / "m.ourcc", tmp_path / "t.txt").facts
    token = engine.tokenizer.encode("i")
    rows = expected(model, [0, *token], 64, 32)
    assert len(token) == 1 and (facts["tokens"], facts["scored"]) == (1, 1)
    assert facts["perplexity"] == pytest.approx(np.exp(-rows[0, token[0]]), rel=1e-5)


def test_texts_that_are_none(made: tuple[Any, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for data, message in (
        (b"", "t.txt is empty, expected a text"),
        (b"i", "a text of 1 tokens, in which none follows another"),
        (b"good \xff bad", "t.txt is no UTF-8 text: byte 5 is 0xff"),
        (b"a\0b", "t.txt is no text: byte 1 is 0"),
        (Path(made[1]).read_bytes()[:4096], "is no "),
    ):
        (tmp_path / "t.txt").write_bytes(data)
        assert run(["eval", str(made[1]), str(tmp_path / "t.txt"), "-q"]) == 1
        shown = capsys.readouterr()
        assert message in shown.err and shown.out == "" and shown.err.count("error:") == 1
    assert run(["eval", str(made[1]), str(tmp_path), "-q"]) == 2
    assert "is a folder, expected a file" in capsys.readouterr().err
    with pytest.raises(ourcc.InputError, match=r"cannot read none\.txt: No such file"):
        read_text(tmp_path / "none.txt")


def test_what_cannot_be_asked(made: tuple[Any, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, path, text = made
    for sizes, message in ((["--window", "65"], "window 65: expected 2 to 64"), (["--window", "8", "--stride", "8"], "stride 8")):
        assert run(["eval", str(path), str(text), "-q", *sizes]) == 2
        assert message in capsys.readouterr().err
    silent = tmp_path / "silent.ourcc"
    ourcc.build(save(model_of("llama", vocab_size=297), tmp_path / "s"), tune="off").save(silent)
    assert run(["eval", str(silent), str(text), "-q"]) == 2
    assert "holds no tokenizer" in capsys.readouterr().err
    folder = save(model_of("llama", vocab_size=297), tmp_path / "o")
    tokenizer_of(folder)
    said = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(said.replace("<|begin|>", "<|start|>"))
    ourcc.build(folder, tune="off").save(tmp_path / "o.ourcc")
    assert run(["eval", str(path), str(text), "-q", "--against", str(tmp_path / "o.ourcc")]) == 2
    assert "the engines have other words" in capsys.readouterr().err
    changed = {**json.loads(said), "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}}
    (folder / "tokenizer.json").write_text(json.dumps(changed))
    ourcc.build(folder, tune="off").save(tmp_path / "o.ourcc")
    assert run(["eval", str(path), str(text), "-q", "--against", str(tmp_path / "o.ourcc")]) == 2
    assert "cut the text into other tokens" in capsys.readouterr().err
