"""Prepared text in an object store is read in blocks, with a bounded cache, and gives the batches of local files.

`memory://` and `file://` stand in for a store; with s3fs and moto installed, a local S3 server too.
"""

import gzip
import lzma
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import firth
from firth import remote, tokenizers
from firth.corpus.readers import find_files, read_documents
from firth.data import block_cache, remote_shards
from firth.data.block_cache import BlockArray
from firth.data.shards import Shards, write_shards
from firth.errors import BadConfig, BadInput, Damaged, Unsupported

fsspec = pytest.importorskip("fsspec", reason="fsspec is an extra")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(remote_shards.FOLDER, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def s3(monkeypatch, tmp_path) -> Iterator[str]:
    """A bucket of a local S3 server."""
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    pytest.importorskip("flask", reason="moto's server is not installed")
    moto = pytest.importorskip("moto.server", reason="moto is not installed")
    for name, value in {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = moto.ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": f"http://{host}:{port}"})
    store = fsspec.filesystem("s3", skip_instance_cache=True, endpoint_url=f"http://{host}:{port}")
    # All servers of a process share their buckets.
    bucket = tmp_path.name.replace("_", "-").lower()
    store.mkdir(bucket)
    yield f"s3://{bucket}"
    server.stop()


@pytest.fixture(params=["memory", "file", "s3"])
def store(request, tmp_path) -> str:
    if request.param == "s3":
        return str(request.getfixturevalue("s3"))
    if request.param == "file":
        return f"file://{tmp_path}/store"
    return f"memory://store-{tmp_path.name}"


def upload(folder: Path, url: str) -> None:
    remote.upload_folder(folder, url, last="manifest.json")


@pytest.mark.parametrize("url", ["s3://bucket/a/b.txt", "memory://a/b", "gs://x/y"])
def test_a_path_keeps_its_url(url):
    assert remote.is_remote(Path(url))
    assert remote.url_of(Path(url)) == url
    assert remote.url_of(url) == url


def test_local_paths_are_not_remote(tmp_path):
    assert not remote.is_remote(tmp_path)
    assert not remote.is_remote("en=texts/a.txt")
    assert not remote.is_remote("C:/texts")
    assert remote.url_of("file:///tmp/x") == remote.url_of(Path("file:///tmp/x")) == "file:///tmp/x"


def test_texts_and_shards_in_a_store_are_those_of_local_files(texts, store, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, path in enumerate(texts):
        (folder / f"{number}.txt").write_bytes(path.read_bytes())
    (folder / "notes.md").write_text("left out")
    upload(folder, f"{store}/texts")
    firth.prepare(folder, out=tmp_path / "local", vocab_size=900)
    firth.prepare(f"{store}/texts", out=f"{store}/data", vocab_size=900)
    found = Shards.open(f"{store}/data")
    wanted = Shards.open(tmp_path / "local")
    assert found.ids[:].tolist() == wanted.ids.tolist()
    assert found.words[:].tolist() == wanted.words.tolist()
    assert found.info == wanted.info
    index = np.random.default_rng(1).integers(0, wanted.num_tokens, (40, 7))
    assert np.array_equal(found.ids[index], wanted.ids[index])
    assert np.array_equal(found.word_starts(index), wanted.word_starts(index))
    with pytest.raises(BadInput, match="already exists"):
        firth.prepare(f"{store}/texts/0.txt", out=f"{store}/data")


def test_globs_and_missing_files_in_a_store(store, tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text(f"The text of {name} is short.")
    upload(folder, f"{store}/many")
    assert [path.name for path in find_files(f"{store}/many/*.txt")] == ["a.txt", "b.txt"]
    with pytest.raises(BadInput, match="matches no file"):
        find_files(f"{store}/many/*.jsonl")
    with pytest.raises(BadInput, match="does not exist"):
        find_files(f"{store}/none.txt")


def test_names_with_signs_of_globs_and_hidden_files_in_a_store(store, tmp_path):
    folder = tmp_path / "wiki [1]"
    (folder / ".old").mkdir(parents=True)
    for name in ("a[2].txt", "b.txt", ".old/c.txt", ".d.txt"):
        (folder / name).write_text(f"The text of {name} is short.")
    upload(folder, f"{store}/wiki [1]")
    assert [path.name for path in find_files(f"{store}/wiki [1]")] == ["a[2].txt", "b.txt"]
    assert [path.name for path in find_files(f"{store}/wiki [1]/a[2].txt")] == ["a[2].txt"]
    assert [path.name for path in find_files(folder)] == ["a[2].txt", "b.txt"]


def test_names_that_are_urls_stay_urls():
    """As those of HTTP servers are."""
    paths = remote._as_paths("https://host/texts/*.txt", ["https://host/texts/a.txt"])
    assert [remote.url_of(path) for path in paths] == ["https://host/texts/a.txt"]


@pytest.fixture
def uploads(monkeypatch) -> list[str]:
    """The names of files in the order in which they come to a store in memory; one named `lost` does not arrive."""
    names: list[str] = []

    def put_file(self: object, local: str, name: str) -> None:
        if name.endswith("lost"):
            raise RuntimeError("NoCredentials: nobody may write this.\nMore lines.")
        names.append(name.rpartition("new/")[2])
        put(self, local, name)

    put = fsspec.get_filesystem_class("memory").put_file
    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "put_file", put_file)
    return names


def test_the_manifest_comes_last_and_goes_first(uploads, tmp_path):
    folder = tmp_path / "new"
    (folder / "tokenizer").mkdir(parents=True)
    for name in ("manifest.json", "ids.bin", "tokenizer/manifest.json"):
        (folder / name).write_text("{}")
    url = f"memory://{tmp_path.name}/new"
    upload(folder, url)
    assert uploads == ["ids.bin", "tokenizer/manifest.json", "manifest.json"]
    # The second upload fails: then its files and the old manifest are not taken for a whole.
    (folder / "lost").touch()
    with pytest.raises(BadInput, match=r"new could not be read or written \(NoCredentials: nobody may write this\.\);"):
        upload(folder, url)
    assert not remote.exists(f"{url}/manifest.json")


def test_errors_of_a_store_are_one_sentence(data, tmp_path, monkeypatch):
    url = f"memory://{tmp_path.name}/data"
    upload(data, url)
    shards = Shards.open(url)

    def fail(self: object, *_: object, **__: object) -> None:
        raise RuntimeError("The token has expired.")

    for name in ("info", "cat_file", "open"):
        monkeypatch.setattr(fsspec.get_filesystem_class("memory"), name, fail)
    for read in (lambda: remote.size_of(url), lambda: remote.open_remote(url), lambda: shards.ids[:5]):
        with pytest.raises(BadInput, match=r"\(The token has expired\.\); check the address, the credentials"):
            read()


def test_a_network_that_is_lost_while_a_file_is_read_is_one_sentence(tmp_path, monkeypatch):
    url = f"memory://{tmp_path.name}/text.txt"
    store, name = remote.file_system(url)
    store.pipe_file(name, b"A line.\n" * 1000)

    def fail(self: object, size: int = -1) -> bytes:
        raise RuntimeError("The endpoint cannot be reached.")

    monkeypatch.setattr(type(store.store[name]), "read", fail)
    with pytest.raises(BadInput, match=r"text\.txt could not be read or written \(The endpoint cannot be reached"):
        list(read_documents(url))


@pytest.mark.parametrize("ending", [".txt", ".txt.gz", ".txt.xz", ".txt.zst", ".parquet"])
def test_files_of_all_kinds_are_read_from_a_store(tmp_path, ending):
    lines = [f"This is line {number} of a text." for number in range(50_000)]
    data = ("\n".join(lines) + "\n").encode()
    path = tmp_path / f"text{ending}"
    if ending == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"text": lines}), path)
    elif ending == ".txt.zst":
        path.write_bytes(pytest.importorskip("zstandard").compress(data))
    else:
        compress = {".txt": bytes, ".txt.gz": gzip.compress, ".txt.xz": lzma.compress}[ending]
        path.write_bytes(compress(data))
    url = f"memory://{tmp_path.name}/text{ending}"
    store, name = remote.file_system(url)
    store.pipe_file(name, path.read_bytes())
    documents = read_documents(url, documents="line")
    assert [document.lines for document in documents] == [(line,) for line in lines]


def test_a_local_copy_that_lost_a_file_is_made_again(data, tmp_path):
    url = f"memory://{tmp_path.name}/data"
    upload(data, url)
    folder = Shards.open(url).folder
    (folder / "sentences.bin").unlink()
    assert Shards.open(url).num_sentences == Shards.open(data).num_sentences


def test_two_processes_may_copy_at_once(data, tmp_path, monkeypatch):
    url = f"memory://{tmp_path.name}/data"
    upload(data, url)
    download = remote.download

    def copied_by_another(path: str | Path, target: Path) -> None:
        monkeypatch.setattr(remote, "download", download)
        others.append(Shards.open(url))
        (others[0].folder / "mark").touch()
        download(path, target)

    others: list[Shards] = []
    monkeypatch.setattr(remote, "download", copied_by_another)
    # The copy that was first stays: the other process reads it.
    assert (Shards.open(url).folder / "mark").exists()


def test_a_folder_that_is_not_that_of_its_manifest_is_refused(data, tmp_path):
    url = f"memory://{tmp_path.name}/data"
    upload(data, url)
    store, name = remote.file_system(f"{url}/sentences.bin")
    store.pipe_file(name, bytes(store.size(name)))
    with pytest.raises(Damaged, match=f"The files of {url} are not those of its manifest"):
        Shards.open(url)
    for text in ("[]", "no JSON", '{"files": {"../../outside": {}}}'):
        store.pipe_file(name.replace("sentences.bin", "manifest.json"), text.encode())
        with pytest.raises(Damaged, match=f"{url}/manifest.json"):
            Shards.open(url)


def make_array(tmp_path: Path, size: int, limit_blocks: int) -> tuple[np.ndarray, BlockArray]:
    values = np.random.default_rng(1).integers(0, 60_000, size).astype("<u2")
    (tmp_path / "values.bin").write_bytes(values.tobytes())
    limit = limit_blocks * block_cache.BLOCK_BYTES
    url = f"file://{tmp_path}/values.bin"
    return values, BlockArray(url, values.dtype, size, folder=tmp_path / "cache", limit_bytes=limit)


def test_a_small_cache_reads_a_large_array(tmp_path, monkeypatch):
    monkeypatch.setattr(block_cache, "BLOCK_BYTES", 256)
    values, array = make_array(tmp_path, 100_001, 8)
    generator = np.random.default_rng(2)
    for _ in range(30):
        index = generator.integers(0, len(values), 200)
        starts = generator.integers(0, len(values) - 50, 10)
        array.prefetch(starts, starts + 50)
        assert np.array_equal(array[index], values[index])
    assert np.array_equal(array[:], values)
    assert np.array_equal(array[99_990:], values[99_990:])
    assert array[np.array([], np.int64)].size == 0
    slots = array._cache()
    assert slots.values.nbytes == 8 * 256
    assert (slots.block_of_slot >= 0).sum() == 8
    with pytest.raises(IndexError):
        array[np.array([100_001])]


def test_what_was_prefetched_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(block_cache, "BLOCK_BYTES", 256)
    values, array = make_array(tmp_path, 10_000, 20)
    array.prefetch(np.array([0, 1280]), np.array([100, 1300]))
    while array._cache().under_way:
        pass
    assert np.array_equal(array[np.arange(100)], values[:100])
    assert array.counts.waited == 0
    array[np.arange(5000, 5010)]
    assert array.counts.waited == 1


def test_a_forked_process_has_its_own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(block_cache, "BLOCK_BYTES", 256)
    values, array = make_array(tmp_path, 10_000, 8)
    assert np.array_equal(array[:1000], values[:1000])
    child = os.fork()
    if child == 0:
        is_same = np.array_equal(array[:], values)
        os._exit(0 if is_same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.array_equal(array[:1000], values[:1000])


def test_mistakes_are_one_sentence(data, tmp_path, monkeypatch):
    with pytest.raises(BadInput, match="is not a folder of prepared text"):
        Shards.open("memory://nothing")
    upload(data, "memory://damaged")
    store, name = remote.file_system("memory://damaged/ids.bin")
    store.pipe_file(name, b"12")
    with pytest.raises(Damaged, match="has 2 bytes instead of"):
        Shards.open("memory://damaged")
    upload(data, "memory://good")
    with pytest.raises(Unsupported, match="copy the prepared text"):
        np.asarray(Shards.open("memory://good").ids)
    monkeypatch.setattr(remote_shards, "BLOCK_BYTES", 256)
    monkeypatch.setenv(remote_shards.LIMIT, "0.000001")
    with pytest.raises(BadConfig, match=r"too small.* FIRTH_CACHE_GB"):
        Shards.open("memory://good")
    tokenizer = tokenizers.load(data / "tokenizer")
    with pytest.raises(BadInput, match="already exists"), write_shards(Path("memory://good"), tokenizer):
        pass
    for wrong in ("much", "nan", "inf"):
        monkeypatch.setenv(remote_shards.LIMIT, wrong)
        with pytest.raises(BadConfig, match="not a number"):
            Shards.open("memory://good")
    with pytest.raises(Unsupported):
        Shards.open("gs://bucket/data")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_on_a_store_is_that_on_local_files(data, tmp_path, tiny, monkeypatch, workers):
    """With a cache of a tenth of the text and shuffling in stretches."""
    monkeypatch.setattr(remote_shards, "BLOCK_BYTES", 512)
    monkeypatch.setenv(remote_shards.LIMIT, "0.000005")
    url = f"file://{tmp_path}/store/data"
    upload(data, url)
    changes = [*tiny, "batches.shuffle_tokens=2000", f"batches.workers={workers}"]
    local = firth.pretrain(data, out=tmp_path / "local", steps=12, changes=changes, device="cpu")
    found = firth.pretrain(url, out=tmp_path / "remote", steps=12, changes=changes, device="cpu")
    assert found == local
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("local", "remote")]
    assert weights[0] == weights[1]
    again = firth.pretrain(url, out=tmp_path / "remote", resume=True, device="cpu")
    assert again == local
