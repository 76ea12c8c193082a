import gzip
import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
import yaml

import cpdrun.conf
from cpdrun.config.identity import identity_hash
from cpdrun.data.base import DataError
from cpdrun.data.text import PackageText, PydocText, bpe
from cpdrun.sweep import plan


def test_targets_are_the_next_bytes_and_samples_follow_one_another():
    data = PydocText(context=32, test_fraction=0.1, text_bytes=None)
    x, y = data.train.fetch_batch(torch.tensor([0, 1]))
    assert x.shape == y.shape == (2, 32) and x.dtype == y.dtype == torch.int64
    assert torch.equal(x[0, 1:], y[0, :-1]) and y[0, -1] == x[1, 0]
    assert len(data.sha256) == 64 and 8 < len(data.train) / len(data.test) < 10


def test_a_context_longer_than_the_text_is_named():
    with pytest.raises(DataError, match=r"data\.context"):
        PydocText(context=10**8, test_fraction=0.1, text_bytes=None)


@pytest.fixture
def packages(tmp_path):
    """Texts laid out as Debian's dict-gcide, linux-doc and perl-doc lay them out: data.data_dir by the data's name."""
    entries = [f'Word{i:03} \\Word"\\, n.\n   1. A word, number {i}.\n\n   Syn: term' for i in range(200)]
    files = {
        "gcide_text/gcide.dict.dz": gzip.compress("\n\n".join(entries).encode()),
        "linux_doc_text/Documentation/index.rst.gz": gzip.compress(b"The kernel\n==========\n" * 40),
        "linux_doc_text/Documentation/ABI/stable/syscalls": b"What: the kernel's calls\n" * 40,
        "linux_doc_text/Documentation/translations/it/index.rst.gz": gzip.compress(b"Il nucleo\n" * 40),
        "linux_doc_text/Documentation/RCU/tree.svg.gz": gzip.compress(b"<svg></svg>\n" * 40),
        "perl_doc_text/5.36.0/pod/perlrun.pod": b"=head1 NAME\n\nperlrun - how to execute\n" * 40,
        "perl_doc_text/5.36.0/pod/perlre.pod": b"=head1 NAME\n\nperlre - expressions\n" * 40,
        "perl_doc_text/5.36.0/CPAN/Meta.pod": b"another package's\n",
    }
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    (tmp_path / "perl_doc_text/5.36").symlink_to("5.36.0")
    return {name: tmp_path / name for name in ("gcide_text", "linux_doc_text", "perl_doc_text")}


def read(name, folder, **changed):
    """The text of conf/data/NAME.yaml at another place."""
    spec = yaml.safe_load((Path(cpdrun.conf.__file__).with_name("data") / f"{name}.yaml").read_text())
    arguments = {key: value for key, value in spec.items() if key not in ("defaults", "_target_")}
    return PackageText(**{**arguments, "data_dir": str(folder), "context": 16, **changed})


def text_of(data):
    return bytes(torch.cat([data.train.tokens_N, data.test.tokens_N]).tolist()).decode()


def test_documents_of_a_package_are_read_once_in_the_order_of_their_digests(packages):
    words = re.findall(r"^Word(\d+)", text_of(read("gcide_text", packages["gcide_text"])), re.MULTILINE)
    assert sorted(words) == [f"{i:03}" for i in range(200)] != words
    kernel = text_of(read("linux_doc_text", packages["linux_doc_text"]))
    assert [kernel.count(word) for word in ("The kernel", "What", "nucleo", "svg")] == [40, 40, 0, 0]
    perl = text_of(read("perl_doc_text", packages["perl_doc_text"]))
    assert [perl.count(word) for word in ("perlrun", "perlre", "another")] == [40, 40, 0]


def test_a_digest_identifies_the_text_wherever_it_is(packages, tmp_path):
    here = read("gcide_text", packages["gcide_text"], test_fraction=0.25)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/gcide.dict").write_bytes(
        gzip.decompress((here.path / "gcide.dict.dz").read_bytes())
    )
    there = read("gcide_text", tmp_path / "elsewhere", test_fraction=0.25)
    assert here.sha256 == there.sha256 and text_of(here) == text_of(there)
    less = read("gcide_text", packages["gcide_text"], text_bytes=4000, test_fraction=0.25)
    assert text_of(here).startswith(text_of(less)) and len(text_of(less)) == 4000
    assert less.sha256 != here.sha256
    assert len(less.train.tokens_N) == 3000


@pytest.mark.parametrize("name", ["gcide_text", "linux_doc_text", "perl_doc_text"])
def test_a_package_that_is_not_installed_is_named(name, tmp_path):
    package = name.removesuffix("_text").replace("gcide", "dict-gcide").replace("_", "-")
    with pytest.raises(
        DataError, match=rf"text of {package} is not in .*: apt-get install {package}, .*pydoc_text"
    ):
        read(name, tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"text_bytes": 0}, r"data\.text_bytes must be at least 1"),
        ({"split_at": "("}, r"data\.split_at='\(' is not a regular expression: missing \)"),
        ({"test_fraction": 1}, r"data\.test_fraction must lie between 0 and 1"),
        ({"bpe_vocab": 256}, r"data\.bpe_vocab must be a whole number from 257 to 65536, or null for bytes, not 256"),
        ({"bpe_vocab": 1e3}, r"data\.bpe_vocab must be a whole number"),
        ({"bpe_vocab": 300, "cache_dir": "/proc/nowhere"}, r"data\.cache_dir=/proc/nowhere cannot be written"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused(packages, changed, message):
    with pytest.raises(DataError, match=message):
        read("gcide_text", packages["gcide_text"], **changed)


def test_a_damaged_file_is_named(packages):
    damaged = packages["gcide_text"] / "gcide.dict.dz"
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(DataError, match=r"gcide\.dict\.dz cannot be read: "):
        read("gcide_text", packages["gcide_text"])


def test_bpe_tokens_spell_the_text_and_their_bytes_are_counted(packages, tmp_path):
    """Of a vocabulary that only the training part made: the test part has letters of its own."""
    pytest.importorskip("tokenizers")
    from tokenizers import Tokenizer

    file = packages["gcide_text"] / "gcide.dict.dz"
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()) + "\n\nŒuvre, n. — 京\n".encode()))
    made = [
        read("gcide_text", file.parent, bpe_vocab=400, test_fraction=0.25, cache_dir=str(tmp_path / cache))
        for cache in ("one", "other", "one")
    ]
    data, plain = made[0], read("gcide_text", file.parent, test_fraction=0.25)
    assert len({d.sha256 for d in made}) == 1 and data.sha256 != plain.sha256
    assert data.vocab_size == data.num_classes == 400
    (folder,) = (tmp_path / "one").iterdir()
    (other,) = (tmp_path / "other").iterdir()
    assert (folder / "tokenizer.json").read_bytes() == (other / "tokenizer.json").read_bytes()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for part in ("train", "test"):
        tokens_N, bytes_N = getattr(data, part).tokens_N, getattr(plain, part).tokens_N
        assert tokenizer.decode(tokens_N.tolist()).encode() == bytes(bytes_N.tolist())
    x, y = data.test.fetch_batch(range(len(data.test)))
    assert torch.equal(x.flatten()[1:], y.flatten()[:-1])
    assert data.bytes_per_token == pytest.approx(
        len(tokenizer.decode(y.flatten().tolist()).encode()) / y.numel()
    )


def test_bpe_without_the_library_says_what_to_install(packages, monkeypatch):
    def not_installed(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("cpdrun.data.text.bpe.version", not_installed)
    with pytest.raises(
        DataError, match=r"data\.bpe_vocab=300 needs the library tokenizers: pip install 'cpdrun\[bpe\]'"
    ):
        read("gcide_text", packages["gcide_text"], bpe_vocab=300)


def test_bpe_pieces_are_whole_characters_and_all_bytes(monkeypatch):
    monkeypatch.setattr("cpdrun.data.text.bpe.PIECE_BYTES", 7)
    for text in ("京都市" * 9 + "ab\ncd" * 5 + "é" * 30, "a", ""):
        pieces = list(bpe._pieces(text.encode()))
        assert "".join(pieces) == text and all(0 < len(piece.encode()) <= 7 for piece in pieces)


def test_the_setting_of_the_vocabulary_does_not_rename_runs_on_bytes():
    (run,) = plan(["exp=transformer_bits_small", "format=fp32", "seed=0"]).runs
    data = {key: value for key, value in run.config["data"].items() if key not in ("bpe_vocab", "cache_dir")}
    assert identity_hash(run.config) == identity_hash({**run.config, "data": data})
    (other,) = plan(["exp=transformer_bits_small", "format=fp32", "seed=0", "data.bpe_vocab=1024"]).runs
    assert other.name != run.name
