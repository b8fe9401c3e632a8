"""Generation: greedy tokens are those of `transformers`, text streams whole characters, conversations keep their cache."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import ourcc
from ourcc.compiler.cli.main import run
from ourcc.ir.errors import UsageError
from ourcc.runtime.engine import OF_LANGUAGE
from ourcc.runtime.language.model import LanguageModel
from ourcc.runtime.language.sequence import Sequences
from ourcc.runtime.language.writing import Told

from .conftest import model_of, save, tokenizer_of

Both = tuple[LanguageModel, Any, Path]
TEXTS = ["Why is the sky blue?", "wörter 🙂 日本語", "a  b\n\n c\t", "", "<|end|> no end", "".join(map(chr, range(1, 300)))]


def test_greedy_tokens_are_those_of_transformers(both: Both) -> None:
    engine, model, _ = both
    for seed in range(6):
        prompt = [int(token) for token in np.random.default_rng(seed).integers(2, 297, 3 + seed)]
        told = Told()
        list(engine.follow(engine.sequence(), prompt, told, max_tokens=20, ignore_end=True))
        with torch.no_grad():
            expected = model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)
        assert told.made == expected[0, len(prompt) :].tolist()
        assert told.ended == "length" and told.read == len(prompt)


def test_a_model_is_shown_in_a_line(both: Both) -> None:
    assert repr(both[0]).startswith("LanguageModel(297 words, sessions of 64 tokens; ")
    assert len(repr(both[0])) < 140


def test_text_survives(both: Both) -> None:
    tokenizer = both[0].tokenizer
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text), special=True) == text
    assert tokenizer.encode("<|end|>") == [1]


def test_a_prompt_is_wrapped_unless_raw(both: Both) -> None:
    engine = both[0]
    wrapped = engine.tokenizer.encode("<|begin|>user\nhi<|end|><|begin|>assistant\n")
    assert engine.prompt_tokens("hi") == engine.prompt_tokens([{"role": "user", "content": "hi"}]) == wrapped
    assert engine.prompt_tokens("hi", raw=True) == engine.tokenizer.encode("hi")
    with pytest.raises(ourcc.UsageError, match="raw leaves out the chat template, which messages are made of"):
        engine.generate([{"role": "user", "content": "hi"}], raw=True)
    assert engine.prompt_tokens([5, 6]) == [5, 6]


def test_pieces_make_the_text(both: Both) -> None:
    engine = both[0]
    for seed in range(4):
        options: Any = {"max_tokens": 30, "temperature": 2.0, "seed": seed, "ignore_end": True}
        told = Told()
        pieces = list(engine.follow(engine.sequence(), engine.prompt_tokens("sky"), told, **options))
        assert "".join(pieces) == engine.tokenizer.decode(told.made)
        assert all(pieces)
        assert "".join(engine.generate("sky", **options)) == "".join(pieces)


def test_a_text_that_stops_is_cut_before_it(both: Both) -> None:
    engine = both[0]
    options: Any = {"max_tokens": 30, "temperature": 1.0, "ignore_end": True}
    whole = "".join(engine.generate("sky", **options))
    stop = whole[7:9]
    assert "".join(engine.generate("sky", stop=[stop], **options)) == whole[: whole.index(stop)]


def test_a_conversation_reads_only_what_is_new(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = both[0]
    chat, read = engine.chat(), []
    step = Sequences._step
    monkeypatch.setattr(Sequences, "_step", lambda self, group: (read.append(group[0].place), step(self, group))[1])
    answers = ["".join(chat.send(text, max_tokens=4)) for text in ("hi", "so")]
    assert [each["role"] for each in chat.messages] == ["user", "assistant", "user", "assistant"]
    assert [each["content"] for each in chat.messages[1::2]] == answers
    # The second question begins behind what the first one left.
    again = engine.prompt_tokens(chat.messages[:3])
    assert read.count(0) == 1 and max(read) < len(again) + 4
    fresh = "".join(engine.generate(chat.messages[:3], max_tokens=4))
    assert fresh == answers[1]


def test_bad_input(both: Both) -> None:
    engine = both[0]
    sequence = engine.sequence()
    for tokens, message in (
        ([], "no tokens"),
        ([297], "token 297: the vocabulary has 0 to 296"),
        ([-1], "token -1"),
        ([3] * 65, "holds 64"),
    ):
        with pytest.raises(ourcc.InputError, match=message):
            sequence.logits(tokens)
    for options, message in (
        ({"max_tokens": 0}, "max_tokens 0"),
        ({"temprature": 1.0}, "no option 'temprature'"),
        ({"max_tokens": "9"}, "max_tokens '9': expected a whole number from 1 on"),
        ({"max_tokens": True}, "max_tokens True"),
        ({"stop": [""]}, "none of them empty"),
        ({"stop": 5}, "stop 5: expected a text or several"),
        ({"stop": [b"x"]}, "stop .*: expected a text or several"),
        ({"top_p": 2.0}, "top_p 2.0"),
        ({"top_p": "a"}, "top_p 'a': expected a number"),
        ({"temperature": None}, "temperature None: expected a number"),
        ({"temperature": 10**400}, "temperature 1.*: expected a number"),
        ({"min_p": [1]}, "min_p .*: expected a number"),
        ({"top_k": 2.0}, "top_k 2.0: expected a whole number"),
        ({"seed": "a"}, "seed 'a': expected a whole number"),
        ({"bias": [1.0]}, "bias .*: expected numbers by token"),
        ({"bias": {"a": 1.0}}, "bias .*: expected numbers by token"),
        ({"bias": {1: float("nan")}}, "bias .*: expected numbers by token"),
        ({"raw": "yes"}, "raw 'yes': expected True or False"),
        ({"logprobs": -1}, "logprobs -1"),
        ({"logprobs": 298}, "logprobs 298: expected a whole number from 0 to 297, the vocabulary's"),
        ({"speculate": 65}, "speculate 65: expected a whole number from 0 to 64"),
    ):
        with pytest.raises(ourcc.CompilerError, match=message):
            engine.generate("hi", **options)  # type: ignore[arg-type]
    for prompt, message in (
        (3.5, "a prompt is a text, a list of messages or a list of tokens, got float"),
        (None, "got NoneType"),
        (b"ab" * 40, "got bytes"),
        ({"role": "user", "content": "hi"}, "got dict"),
        ([{"role": "user"}], "a message is"),
        ([{"role": "user", "content": "hi", "more": object()}], "what a chat template cannot be given"),
        ([{"role": "user", "content": "hi"}, 5], "tokens are whole numbers, got {'role'"),
        ([1, "a"], "tokens are whole numbers, got 'a'"),
        ([1, True], "tokens are whole numbers, got True"),
        ([1, 2.0], "tokens are whole numbers, got 2.0"),
        ([[1, 2]], r"tokens are whole numbers, got \[1, 2\]"),
        ([10**30], "token 1000000000000000000000000000000: the vocabulary has"),
    ):
        with pytest.raises(ourcc.InputError, match=message):
            engine.generate(prompt)  # type: ignore[arg-type]
    assert engine.prompt_tokens(np.array([5, 6])) == engine.prompt_tokens(iter([5, 6])) == [5, 6]  # type: ignore[arg-type]
    # A context that is full ends the text.
    told = Told()
    list(engine.follow(engine.sequence(), [5] * 62, told, max_tokens=30, ignore_end=True))
    assert (told.ended, len(told.made)) == ("context", 3)


def test_commands(both: Both, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _, path = both
    assert run(["generate", str(path), "sky", "--max-tokens", "5"]) == 0
    shown = capsys.readouterr()
    assert shown.out.rstrip("\n") == "".join(engine.generate("sky", max_tokens=5)).rstrip("\n")
    assert "tokens/s" in shown.err
    monkeypatch.setattr("sys.stdin", io.StringIO("sky"))
    assert run(["generate", str(path), "--max-tokens", "5", "-q"]) == 0 and capsys.readouterr().out == shown.out
    assert run(["generate", str(path), "sky", "--raw", "--json", "--max-tokens", "5", "-q"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["text"] == "".join(engine.generate("sky", raw=True, max_tokens=5)) and len(told["tokens"]) <= 5
    assert run(["generate", str(path), "sky", "--raw", "--system", "x"]) == 2
    assert "--raw leaves out" in capsys.readouterr().err
    assert run(["inspect", str(path)]) == 0
    assert "llama, 297 words, sessions of 64 tokens, tokenizer and chat template" in " ".join(capsys.readouterr().out.split())
    other = tmp_path / "other.ourcc"
    ourcc.build(torch.nn.Linear(2, 2), (torch.zeros(1, 2),)).save(other)
    assert run(["generate", str(other), "x"]) == 2
    assert "holds no language model" in capsys.readouterr().err


def test_chat_command(both: Both, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["hi", "so"])

    def line(prompt: str = "") -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", line)
    assert run(["chat", str(both[2]), "--max-tokens", "3"]) == 0
    assert capsys.readouterr().err.count("tokens/s") == 2
    lines = iter(["hi", "so"])
    assert run(["chat", str(both[2]), "--max-tokens", "3", "--json"]) == 0
    assert [len(json.loads(line)["tokens"]) for line in capsys.readouterr().out.splitlines()] == [3, 3]


def test_a_chat_goes_on_behind_what_was_refused_and_says_so_at_the_end(
    both: Both, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line of the input has an object in the output, and whoever called sees that one was refused."""
    for talk in (["hi", "the " * 100, "so"], ["the " * 100, "hi", "so"]):
        lines = iter([*talk, ""])
        monkeypatch.setattr("builtins.input", lambda prompt="", lines=lines: next(lines))
        assert run(["chat", str(both[2]), "--max-tokens", "3", "--json"]) == 1
        said = capsys.readouterr()
        assert ["error" in json.loads(line) for line in said.out.splitlines()] == [text.startswith("the ") for text in talk]
        assert said.err.startswith("error: the ") and "tokens" in said.err


def test_an_interrupt_at_a_terminal_ends_the_answer_alone(
    both: Both, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ourcc.compiler.cli import chat as command

    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(command, "say", say)
    for is_terminal, status, answers in ((True, 0, 2), (False, 130, 0)):
        lines, said = iter(["hi", "so", ""]), []
        monkeypatch.setattr("builtins.input", lambda prompt="", lines=lines: next(lines))
        monkeypatch.setattr(command, "standard_input", lambda hint, is_terminal=is_terminal: SimpleNamespace(isatty=lambda: is_terminal))
        assert run(["chat", str(both[2]), "--max-tokens", "6"]) == status
        assert capsys.readouterr().err.count("tokens/s") == answers


def test_a_conversation_makes_one_answer_at_a_time(both: Both) -> None:
    chat = both[0].chat()
    first, second = (chat.send(text, max_tokens=4, ignore_end=True) for text in ("hi", "so"))
    next(first)
    with pytest.raises(ourcc.UsageError, match="an answer of this conversation is being made"):
        next(second)
    first.close()
    list(chat.send("so", max_tokens=2))
    assert [message["content"] for message in chat.messages if message["role"] == "user"] == ["hi", "so"]


def test_saved_conversations_replace_no_other_files(both: Both, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("precious")
    for write in (both[0].chat().save, both[0].sequence().save):
        with pytest.raises(ourcc.UsageError, match="holds something else, and is not replaced by a saved session"):
            write(notes)
        write(tmp_path / "talk.session")
        write(tmp_path / "talk.session")
    assert notes.read_text() == "precious"


def test_a_stop_text_may_begin_in_another_token(both: Both) -> None:
    engine = both[0]
    options: Any = {"max_tokens": 40, "temperature": 1.5, "ignore_end": True}
    whole = "".join(engine.generate("sky", **options))
    for first in range(0, len(whole) - 4, 3):
        stop = whole[first : first + 4]
        assert "".join(engine.generate("sky", stop=stop, **options)) == whole[: whole.index(stop)]
    # What only looks like a beginning is shown all the same.
    assert "".join(engine.generate("sky", stop=whole[-3:] + "no", **options)) == whole


def test_a_refused_message_leaves_the_conversation_as_it_was(both: Both) -> None:
    chat = both[0].chat()
    list(chat.send("hi", max_tokens=2))
    before = list(chat.messages)
    for text, options in (("the " * 100, {}), ("so", {"bias": {999: 1.0}})):
        with pytest.raises(ourcc.InputError):
            list(chat.send(text, **options))  # type: ignore[arg-type]
        assert chat.messages == before
    assert len(list(chat.send("so", max_tokens=3))) <= 3


def test_a_call_that_is_refused_leaves_the_cache_as_it_was(both: Both) -> None:
    engine = both[0]
    sequence, expected = engine.sequence(), engine.sequence().logits([5, 6, 7, 8, 9])
    sequence.logits([5, 6, 7, 8])
    with sequence.session._kept.turn("another thread's call"), pytest.raises(ourcc.EngineError, match="another thread is using it"):
        sequence.logits([8, 9])
    assert sequence.tokens == [5, 6, 7, 8]
    np.testing.assert_array_equal(sequence.logits([5, 6, 7, 8, 9]), expected)


def test_texts_that_are_none(both: Both, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ourcc.InputError, match="which is no character"):
        both[0].prompt_tokens("a\ud800", raw=True)
    assert run(["generate", str(both[2]), "\udcff", "--raw"]) == 1
    assert "which is no character" in capsys.readouterr().err


@pytest.mark.parametrize("said", [5, [{"name": "other", "template": "x"}]])
def test_templates_that_are_no_text(said: object, tmp_path: Path) -> None:
    folder = save(model_of("llama", vocab_size=297), tmp_path / "m")
    tokenizer_of(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": said}))
    with pytest.raises(ourcc.CompilerError, match="the chat template is"):
        ourcc.build(folder)


def test_what_a_tokenizer_puts_before_texts(tmp_path: Path) -> None:
    folder = save(model_of("llama", vocab_size=297), tmp_path / "m")
    tokenizer_of(folder, begins=True)
    config = {
        "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
        "bos_token": {"content": "<|begin|>"},
        "eos_token": "<|end|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    engine: Any = ourcc.build(folder, tune="off")
    assert engine.prompt_tokens("hi", raw=True) == [0, *engine.tokenizer.encode("hi")]
    assert engine.prompt_tokens("hi") == [0, *engine.tokenizer.encode("hi"), 1]


def test_a_conversation_in_a_file(both: Both, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, kept = str(both[2]), tmp_path / "talk"

    def talk(*lines: str, options: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        rest = iter([*lines, ""])
        monkeypatch.setattr("builtins.input", lambda prompt="": next(rest))
        assert run(["chat", path, "--max-tokens", "3", "--json", *options]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    whole = talk("hi", "so")
    session = ("--session", str(kept))
    parts = [*talk("hi", options=session), *talk("so", options=session)]
    assert [each["text"] for each in parts] == [each["text"] for each in whole]
    assert len(both[0].load_chat(kept).messages) == 4
    kept.write_bytes(kept.read_bytes()[:-1])
    assert run(["chat", path, *session]) == 1
    assert "does not match its digest" in capsys.readouterr().err


def test_scores_and_guesses_on_the_command_line(both: Both, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(both[2])
    assert run(["generate", path, "sky", "--max-tokens", "12", "--json", "--logprobs", "2", "--speculate", "4"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["token"] for each in told["logprobs"]] == told["tokens"] and len(told["logprobs"][0]["top"]) == 2
    assert run(["generate", path, "the the the the the the the", "--raw", "--max-tokens", "12", "--speculate", "4"]) == 0
    shown = capsys.readouterr().err
    assert "guesses were right" in shown and "GB/s" not in shown
    assert run(["generate", path, "sky", "--speculate", "99"]) == 2
    assert "speculate 99: expected a whole number from 0 to 64" in capsys.readouterr().err


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_a_model_says_does_not_steer_a_terminal(
    is_terminal: bool, both: Both, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LanguageModel, "follow", lambda *_, **__: iter(["a\x1b[2J", "\x9b1m\tb\n\r"]))
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: is_terminal, raising=False)
    assert run(["generate", str(both[2]), "sky", "-q"]) == 0
    assert capsys.readouterr().out == ("a\\x1b[2J\\x9b1m\tb\n\\x0d\n" if is_terminal else "a\x1b[2J\x9b1m\tb\n\r\n")


@pytest.mark.parametrize("words", [["generate"], ["chat"]])
def test_a_closed_standard_input_is_wrong_usage(
    words: list[str], both: Both, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert run([*words, str(both[2])]) == 2
    assert "error: standard input is closed, expected text to read from it\n  help: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["generate", "--max-tokens", "100000"], ["chat", "--max-tokens", "100"], ["chat", "--json", "--max-tokens", "9"]]
)
def test_a_model_stops_where_nobody_reads_on(words: list[str], both: Both) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    code = "from ourcc.compiler.cli.main import main; main()"
    command = [sys.executable, "-c", code, words[0], str(both[2]), *words[1:]]
    done = subprocess.run(command, input=b"sky\nsea\n", stdout=writer, stderr=subprocess.PIPE, timeout=300, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr.count(b"error")) == (141, 0), done.stderr


@pytest.mark.parametrize(
    ("words", "given", "said"),
    [
        ([], "", "standard input holds no prompt"),
        ([], " \n", "standard input holds no prompt"),
        (["--raw"], "", "standard input holds no prompt"),
        (["", "--system", "be brief"], "sky", "got no prompt"),
        (["  "], "sky", "got no prompt"),
    ],
)
def test_an_empty_prompt_is_wrong_usage(
    words: list[str], given: str, said: str, both: Both, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(given))
    assert run(["generate", str(both[2]), *words, "-q"]) == 2
    assert f"error: {said}, expected a text" in capsys.readouterr().err


def test_run_points_to_generate(both: Both, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", str(both[2]), "-q"]) == 2
    told = capsys.readouterr().err
    assert "is the engine of a language model" in told and f"ourcc generate {both[2]} PROMPT" in told
    assert run(["run", str(both[2]), "--function", "sample", "-q"]) == 1
    assert "missing" in capsys.readouterr().err


def test_other_engines_say_that_they_hold_no_language_model() -> None:
    public = {name for name in vars(LanguageModel) if not name.startswith("_")}
    assert public == OF_LANGUAGE
    engine = ourcc.build(torch.export.export(torch.nn.Linear(3, 4), (torch.zeros(2, 3),)))
    assert type(engine) is ourcc.Engine
    for name in sorted(OF_LANGUAGE):
        with pytest.raises(UsageError, match=f"the engine holds no language model, which {name} is for: it takes inputs input"):
            getattr(engine, name)
        assert not hasattr(engine, name)
    with pytest.raises(AttributeError, match="'Engine' object has no attribute 'nothing'"):
        engine.nothing  # noqa: B018
