"""Tokens that a user typed are in no file of a record, and reach the run all the same."""

import subprocess
import sys

import pytest

from cpdrun.config.identity import identity_hash
from cpdrun.config.secrets import (
    MASK,
    VARIABLE,
    MaskedSecretError,
    hand_over,
    mask_text,
    masked,
    revealed,
    secrets_of,
)

HF = "hf_" + "aB3" * 8


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("--token abc123def --lr 0.1", "abc123def"),
        ("--hub_token=abc123def --lr 0.1", "abc123def"),
        ("--wandb-api-key 'a b c' -v", "a b c"),
        ("--password hunter2!", "hunter2!"),
        ("script.args.secret=abc123def", "abc123def"),
        (f"script_args='--model x --key2 {HF}'", HF),
        ("--extra ghp_0123456789abcdef0123", "ghp_0123456789abcdef0123"),
        ("--extra sk-proj-0123456789abcdef", "sk-proj-0123456789abcdef"),
    ],
)
def test_secrets_are_masked(text, secret):
    assert mask_text(text) == text.replace(secret, MASK) == mask_text(mask_text(text))


@pytest.mark.parametrize(
    "text",
    [
        "--tokens 1000 --max-token 512 --tokenizer gpt2 --token-dropout 0.1",
        "--pad-token '<pad>' --bos_token [BOS]",
        "--token --lr 0.1",
        "--key value --keys 3 sk-learn hf_home",
    ],
)
def test_other_text_is_not_masked(text):
    assert mask_text(text) == text


def test_a_run_gets_its_secrets_back(monkeypatch):
    config = {
        "format": "e4m3",
        "aps": False,
        "script": {"arguments": f"--token {HF} --password hunter2", "args": {"api_key": "abc123", "lr": 0.1}},
        "data": {"token": "another-one", "n_token": 7},
    }
    kept = masked(config)
    assert not any(secret in str(kept) for secret in ("hunter2", HF, "abc123", "another-one"))
    assert secrets_of(config) == [HF, "hunter2", "abc123", "another-one"] and secrets_of(kept) == []
    assert identity_hash(config) == identity_hash(kept)  # a new token is no new run
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(MaskedSecretError):
        revealed(kept)
    assert revealed({"format": "e4m3"}) == {"format": "e4m3"}
    monkeypatch.setenv(VARIABLE, "[]")
    hand_over(config)
    assert revealed(kept) == config


SCRIPT = """
import pathlib, sys, torch
pathlib.Path(__file__).with_name("typed.txt").write_text(" ".join(sys.argv[1:]))
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    loss = model(torch.ones(4, 2)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"val_loss {loss.item():.4f}")
"""


def test_a_script_gets_its_token_and_no_file_of_the_record_has_it(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    typed = f"--token {HF} --lr 0.1"
    words = ["script=train.py", f"script_args={typed}", "recipe=bf16", "name=s", "device=cpu"]
    words += ["script.metrics.val_loss=val_loss ([0-9.]+)", "script.direction.val_loss=min"]
    done = subprocess.run(
        [sys.executable, "-m", "cpdrun.cli", "sweep", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "typed.txt").read_text() == typed
    files = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    assert files and not any(HF.encode() in path.read_bytes() for path in files)
