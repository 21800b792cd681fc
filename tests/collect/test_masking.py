"""Secrets and texts of data do not enter a trace; words that checks need do."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.collect.recording import recording
from traincheck.collect import masking
from traincheck.collect.instruments._wrap import CallTemplates
from traincheck.schema.marks import MASK, text_length

SECRETS = [
    "password", "passwd", "db_password", "token", "hf_token", "HF_TOKEN", "access_token", "secret",
    "clientSecret", "client-secret", "AWS_SECRET_ACCESS_KEY", "api_key", "apiKey", "OPENAI_API_KEY",
    "auth", "Authorization", "credentials", "private_key", "ssh_key", "jwt", "pwd",
]  # fmt: skip
NAMES = [
    "pad_token", "eos_token", "token_type_ids", "pad_token_id", "tokenizer", "num_tokens", "tokens",
    "key", "query", "key_padding_mask", "author", "oauthlib", "passes", "lr", "", "0", "cls_token",
]  # fmt: skip
WORDS = ["mean", "channels_last", "ReLU", "cuda:0", "NCHW", "float16", "none", "bij,bjk->bik"]
TEXTS = [
    "DATASECRET-17",
    "KWSECRET",
    "a sentence",
    "hunter2hunter2",
    "/home/me/x",
    "",
    "é",
    "x" * 99,
]
TOKENS = [
    "wJalrXUtnFEMIK7MDENGbPxRfiCYzzQ8vTsLmKpQ",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "sk-proj-a8Bf39dKq02LmX9zPwE7",
    "5f0c2ab19e3d5f0c2ab19e3d5f0c2ab19e3d5f0c",
]


@pytest.mark.parametrize("name", SECRETS)
def test_names_that_secrets_have(name: str) -> None:
    assert masking.is_secret(name)
    assert masking.hides(name, "value")
    assert not masking.hides(name, torch.zeros(1))
    assert not masking.hides(name, None)


@pytest.mark.parametrize("name", NAMES)
def test_names_that_secrets_do_not_have(name: str) -> None:
    assert not masking.is_secret(name)


@pytest.mark.parametrize("word", WORDS)
def test_a_word_is_written(word: str) -> None:
    assert masking.text(word) == word


@pytest.mark.parametrize("text", TEXTS)
def test_of_other_texts_length_and_fingerprint_are_written(text: str) -> None:
    found = masking.text(text)
    assert found == masking.text(text)
    assert not text or text not in found
    assert found != masking.text(f"{text}-")
    assert text_length(found) == len(text)


@pytest.mark.parametrize("name", ["model_state_dict", "0.weight", "MODEL_STATE", "password"])
def test_a_usual_key_is_written(name: str) -> None:
    assert masking.key(name) == name


@pytest.mark.parametrize("name", ["KEYSECRET", "two words", *TOKENS[:1]])
def test_another_key_is_not_written(name: str) -> None:
    assert name not in masking.key(name)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("see https://u:p@host/?key=abc&x=1", f"see https://{MASK}@host/?key={MASK}&x=1"),
        ("{'api_key': 'abc', 'lr': 0.1}", f"{{'api_key': '{MASK}', 'lr': 0.1}}"),
        ("password=abc token: def", f"password={MASK} token: {MASK}"),
        ("Bearer abc.def.ghi failed", f"Bearer {MASK} failed"),
        *((f"no {token}.", f"no {MASK}.") for token in TOKENS),
    ],
)
def test_messages_are_written_without_secrets(message: str, expected: str) -> None:
    assert masking.message(message) == expected


@pytest.mark.parametrize(
    "message",
    [
        "`torch.nn.utils.weight_norm` is deprecated in favor of "
        "`torch.nn.utils.parametrizations.weight_norm`.",
        "Detected call of `lr_scheduler.step()` before `optimizer.step()`. "
        "https://pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate",
        "lr=0.1, size: [64, 10], key: value",
    ],
)
def test_a_usual_message_is_written_as_it_is(message: str) -> None:
    assert masking.message(message) == message


def test_values_of_secret_variables_are_found_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PASSWORD", "correct horse")
    monkeypatch.setenv("MY_WORD", "ordinary word")
    assert masking.message("a correct horse, an ordinary word") == f"a {MASK}, an ordinary word"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("out/checkpoint-100/model.pt", "out/checkpoint-100/model.pt"),
        ("runs/train_20240101-101010/m.pt", "runs/train_20240101-101010/m.pt"),
        ("s3://a:b@c/d.pt", f"s3://{MASK}@c/d.pt"),
        (f"x/{TOKENS[0]}/m.pt", f"x/{masking.known_by(TOKENS[0])}/m.pt"),
        ("PATHSECRET.pt", f"{masking.known_by('PATHSECRET')}.pt"),
    ],
)
def test_paths(path: str, expected: str) -> None:
    assert masking.path(path) == expected


def test_command_lines() -> None:
    given = "python train.py --token A --password=B --lr 0.1 --tokenizer gpt2 --api-key -x --key K"
    found = f"python train.py --token {MASK} --password={MASK} --lr 0.1 --tokenizer gpt2 "
    assert masking.command(given.split()) == f"{found}--api-key -x --key {MASK}".split()


def test_what_a_user_gives_for_a_mark() -> None:
    given = {"token": "A", "note": "a sentence", "deep": [{"password": 1, "lr": 0.1}], "n": None}
    hidden = {"token": MASK, "note": "a sentence", "deep": [{"password": MASK, "lr": 0.1}]}
    assert masking.noted(given) == {**hidden, "n": None}


@pytest.mark.parametrize(
    ("names", "count", "keywords", "values", "expected"),
    [
        (("a",), 1, (), (b"1",), b'"a":1'),
        (("token",), 1, (), (b"1",), b'"token":"<masked>"'),
        (("token", "b"), 2, (), (b"1", b"2"), b'"token":"<masked>","b":2'),
        (("a", "token"), 2, (), (b"1", b"2"), b'"a":1,"token":"<masked>"'),
        ((), 0, ("token",), (b"1",), b'"token":"<masked>"'),
        (("a",), 1, ("password",), (b"1", b"2"), b'"a":1,"password":"<masked>"'),
    ],
)
def test_templates_leave_out_what_names_hide(
    names: Any, count: int, keywords: Any, values: Any, expected: bytes
) -> None:
    templates = CallTemplates("f", names, {}, None)
    _, outside, more = templates[(count, *keywords) if keywords else count]
    numbers = (1, 2, b'"s":0', 3, 4)
    line = outside % (*numbers, more % values, b"null", b"")
    assert b'"args":{%b}' % expected in line
    if count == 1 and not keywords:  # the short way, without `more`
        assert b'"args":{%b}' % expected in outside % (*numbers, values[0], b"null", b"")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)

    def forward(self, x: Any, texts: Any = None, **config: Any) -> Any:
        return self.fc(x)


def test_no_text_of_a_program_is_found_in_its_trace(tmp_path: Path) -> None:
    net = Net()
    with recording(tmp_path) as run:
        net(torch.zeros(1, 2), ["DATASECRET"], mode="train", token="KWSECRET", c={"api_key": "A1"})
    (call,) = run.calls(f"{Net.__module__}.Net.forward")
    assert call.args["token"] == MASK
    assert call.args["mode"] == "train"
    assert call.args["c"] == {"dict": {"api_key": MASK}}
    for path in tmp_path.rglob("events-*"):
        assert b"SECRET" not in path.read_bytes()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_working_directory_in_the_environment_is_no_secret(monkeypatch) -> None:
    monkeypatch.setenv("PWD", "/home/me/project")
    monkeypatch.setenv("DB_PASSWORD", "correct-horse")
    found = masking._environment()
    assert "correct-horse" in found
    assert "/home/me/project" not in found
