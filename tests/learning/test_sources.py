"""Finding, fetching and verifying: against a small registry and a server on this machine."""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import threading
import urllib.request
from pathlib import Path

import pytest

from ebscfl.errors import DataError, UsageError
from ebscfl.learning import sources
from ebscfl.learning.registry import SOURCES, Shape, Source, SourceFile

CONTENT = bytes(range(256)) * 40  # 10 240 bytes
OTHER = CONTENT[::-1]
SHAPE = Shape((1, 1, 1), 1, 1, 2, balanced=False)


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves ``server.files``; ``server.mode`` says how badly."""

    def do_GET(self):
        self.server.asked.append((self.path, self.headers.get("Range")))
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        start, mode = 0, self.server.mode
        wanted = self.headers.get("Range")
        if wanted and mode != "no-range":
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206)
            told = start + 1 if mode == "wrong-place" else start
            self.send_header("Content-Range", f"bytes {told}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        body = content[start:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:1000] if mode == "break-off" else body)

    def log_message(self, *args):
        """Quiet."""


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.files, running.asked, running.mode = {"/one.bin": CONTENT, "/two.bin": OTHER}, [], "good"
        running.base = f"http://127.0.0.1:{running.server_address[1]}"
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def described(name: str, content: bytes, *urls: str) -> SourceFile:
    return SourceFile(name, len(content), "sha256:" + hashlib.sha256(content).hexdigest(), urls)


def opener(request: urllib.request.Request):
    """Straight to 127.0.0.1, whatever proxy the environment names."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10)


def fetch_one(server, folder: Path, file: SourceFile | None = None, **more) -> Path:
    return sources.fetch_file(
        file or described("one.bin", CONTENT, server.base + "/one.bin"), folder, opener=opener, **more
    )


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_full_fetch(server, tmp_path):
    seen = []
    path = fetch_one(server, tmp_path / "new", progress=lambda *event: seen.append(event))
    assert path.read_bytes() == CONTENT
    assert leftovers(tmp_path) == ["one.bin"]
    assert seen[-1] == ("one.bin", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert server.asked == [("/one.bin", None)]


@pytest.mark.parametrize("start", [1, 5000, len(CONTENT) - 1])
def test_a_part_is_resumed(server, tmp_path, start):
    (tmp_path / "one.bin.part").write_bytes(CONTENT[:start])
    assert fetch_one(server, tmp_path).read_bytes() == CONTENT
    assert server.asked == [("/one.bin", f"bytes={start}-")]
    assert leftovers(tmp_path) == ["one.bin"]


def test_a_complete_part_needs_no_request(server, tmp_path):
    (tmp_path / "one.bin.part").write_bytes(CONTENT)
    assert fetch_one(server, tmp_path).read_bytes() == CONTENT
    assert server.asked == []


def test_a_part_that_is_too_long_is_started_afresh(server, tmp_path):
    (tmp_path / "one.bin.part").write_bytes(CONTENT + b"x")
    assert fetch_one(server, tmp_path).read_bytes() == CONTENT
    assert server.asked == [("/one.bin", None)]


def test_a_server_without_ranges_sends_everything(server, tmp_path):
    server.mode = "no-range"
    (tmp_path / "one.bin.part").write_bytes(b"old" * 10)
    assert fetch_one(server, tmp_path).read_bytes() == CONTENT
    assert server.asked == [("/one.bin", "bytes=30-")]


def test_a_range_that_cannot_be_satisfied_starts_afresh(server, tmp_path):
    """Without a known size, a part longer than the file makes the server answer 416."""
    file = dataclasses.replace(described("one.bin", CONTENT, server.base + "/one.bin"), size=None)
    (tmp_path / "one.bin.part").write_bytes(CONTENT + b"x")
    assert fetch_one(server, tmp_path, file).read_bytes() == CONTENT
    assert server.asked == [("/one.bin", f"bytes={len(CONTENT) + 1}-"), ("/one.bin", None)]


def test_a_resume_at_another_place_is_refused_and_keeps_the_part(server, tmp_path):
    server.mode = "wrong-place"
    (tmp_path / "one.bin.part").write_bytes(CONTENT[:10])
    with pytest.raises(DataError, match="resumed at another place"):
        fetch_one(server, tmp_path)
    assert (tmp_path / "one.bin.part").read_bytes() == CONTENT[:10]


def test_a_broken_transfer_can_be_resumed(server, tmp_path):
    server.mode = "break-off"
    with pytest.raises(DataError, match=r"one.bin could not be fetched .*1000 of 10240"):
        fetch_one(server, tmp_path)
    assert leftovers(tmp_path) == ["one.bin.part"]
    server.mode = "good"
    assert fetch_one(server, tmp_path).read_bytes() == CONTENT
    assert server.asked[-1] == ("/one.bin", "bytes=1000-")


@pytest.mark.parametrize("content", [OTHER, CONTENT + b"more"])
def test_wrong_content_leaves_nothing(server, tmp_path, content):
    server.files["/one.bin"] = content
    with pytest.raises(DataError, match=r"one.bin could not be fetched .*(checksum is wrong|instead of 10240)"):
        fetch_one(server, tmp_path)
    assert leftovers(tmp_path) == []


def test_wrong_content_leaves_the_file_that_was_there(server, tmp_path):
    (tmp_path / "one.bin").write_bytes(b"before")
    server.files["/one.bin"] = OTHER
    with pytest.raises(DataError, match="checksum is wrong"):
        fetch_one(server, tmp_path)
    assert (tmp_path / "one.bin").read_bytes() == b"before"
    assert leftovers(tmp_path) == ["one.bin"]


def test_the_next_address_is_tried(server, tmp_path):
    file = described("one.bin", CONTENT, server.base + "/gone", server.base + "/two.bin", server.base + "/one.bin")
    assert fetch_one(server, tmp_path, file).read_bytes() == CONTENT
    assert [path for path, _ in server.asked] == ["/gone", "/two.bin", "/one.bin"]


def test_all_addresses_fail(server, tmp_path):
    file = described("one.bin", CONTENT, server.base + "/gone", "http://127.0.0.1:1/one.bin")
    with pytest.raises(
        DataError, match=r"one.bin could not be fetched .*gone: Not Found; http://127.0.0.1:1/"
    ) as caught:
        fetch_one(server, tmp_path, file)
    assert "\n" not in str(caught.value)


def test_a_file_without_address_cannot_be_fetched(tmp_path):
    with pytest.raises(DataError, match="it has no address"):
        sources.fetch_file(described("one.bin", CONTENT), tmp_path)


def test_a_folder_that_cannot_be_made(server, tmp_path):
    (tmp_path / "occupied").write_bytes(b"")
    with pytest.raises(DataError, match="could not be fetched"):
        fetch_one(server, tmp_path / "occupied")


# A registry of two data sets whose files have the same name, as MNIST and Fashion-MNIST.


@pytest.fixture
def registry(server):
    one = described("one.bin", CONTENT, server.base + "/one.bin")
    extra = described("extra.bin", b"extra", server.base + "/extra.bin")
    alternative = (described("x.npz", b"x"), SourceFile("y.npz", 1, None))
    namesake = described("one.bin", OTHER, server.base + "/two.bin")
    return {
        "digits": Source("digits", "Digits", "free", SHAPE, (one,), (extra,), (alternative,)),
        "clothes": Source("clothes", "Clothes", "free", SHAPE, (namesake,)),
    }


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_search_order(no_local_data, monkeypatch):
    cache = no_local_data / "cache" / "ebscfl"
    assert sources.search_folders("d") == (cache / "d", cache)
    monkeypatch.setenv(sources.ENVIRONMENT_VARIABLE, "/env")
    assert sources.search_folders("d", Path("/arg")) == (
        *(Path("/arg/d"), Path("/arg")),
        *(Path("/env/d"), Path("/env")),
        *(cache / "d", cache),
    )


@pytest.mark.parametrize("value", ["", "relative/cache"])
def test_cache_defaults_to_home(monkeypatch, value):
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert sources.cache_folder() == Path.home() / ".cache" / "ebscfl"


def test_locate_prefers_the_argument_then_the_environment(no_local_data, monkeypatch, registry):
    in_cache = put(sources.cache_folder() / "digits" / "one.bin", CONTENT)
    assert sources.locate("digits", None, registry) == {"one.bin": in_cache}
    in_env = put(no_local_data / "env" / "one.bin", CONTENT)
    monkeypatch.setenv(sources.ENVIRONMENT_VARIABLE, str(no_local_data / "env"))
    assert sources.locate("digits", None, registry) == {"one.bin": in_env}
    in_arg = put(no_local_data / "arg" / "digits" / "one.bin", CONTENT)
    extra = put(no_local_data / "arg" / "extra.bin", b"extra")
    found = sources.locate("digits", no_local_data / "arg", registry)
    assert found == {"one.bin": in_arg, "extra.bin": extra}


def test_a_namesake_is_passed_over(no_local_data, registry):
    put(no_local_data / "one.bin", OTHER)
    with pytest.raises(DataError, match=r"digits: one.bin was not found in .*; run `ebs-cfl data fetch digits`"):
        sources.locate("digits", no_local_data, registry)
    assert sources.locate("clothes", no_local_data, registry) == {"one.bin": no_local_data / "one.bin"}
    assert sources.verify("digits", no_local_data, registry).state == "missing"


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT[:-1] + b"?"])
def test_a_corrupt_file_is_named_with_the_command(no_local_data, registry, content):
    path = put(no_local_data / "one.bin", content)
    with pytest.raises(DataError, match=rf"{path} is corrupt \(.*\); run `ebs-cfl data fetch digits`"):
        sources.locate("digits", no_local_data, registry)
    status = sources.verify("digits", no_local_data, registry)
    assert (status.state, status.usable) == ("corrupt", False)
    assert str(path) in status.note


def test_another_complete_layout_is_enough(no_local_data, registry):
    x = put(no_local_data / "x.npz", b"x")
    assert not sources.verify("digits", no_local_data, registry).usable
    y = put(no_local_data / "y.npz", b"y")
    assert sources.locate("digits", no_local_data, registry) == {"x.npz": x, "y.npz": y}
    assert sources.verify("digits", no_local_data, registry).state == "ok"


def test_a_pickled_layout_is_named_but_not_read(no_local_data):
    path = put(no_local_data / "cifar-10-python.tar.gz", b"cos\nsystem")
    with pytest.raises(DataError, match=rf"{path} is there, but .* never read\); run `ebs-cfl data fetch cifar10`"):
        sources.locate("cifar10", no_local_data)


def test_a_file_that_cannot_be_read_is_named(no_local_data, registry, monkeypatch):
    path = put(no_local_data / "one.bin", CONTENT)

    def refuse(path, algorithm):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(sources, "_digest", refuse)
    with pytest.raises(DataError, match=rf"{path} cannot be read \(Permission denied\)"):
        sources.locate("digits", no_local_data, registry)


def test_verify_and_list(no_local_data, registry):
    states = {status.name: status.state for status in sources.list_datasets(no_local_data, registry)}
    assert states == {"mnist-mini": "embedded", "digits": "missing", "clothes": "missing"}
    assert sources.verify("digits", no_local_data, registry).note == "run `ebs-cfl data fetch digits`"
    put(no_local_data / "digits" / "one.bin", CONTENT[:-1] + b"?")
    # The quick list looks at presence and size; verify reads the bytes.
    assert {s.name: s.state for s in sources.list_datasets(no_local_data, registry)}["digits"] == "present"
    assert sources.verify("digits", no_local_data, registry).state == "corrupt"
    assert sources.verify("mnist-mini").state == "embedded"


def test_fetch_brings_what_is_missing(server, no_local_data, registry):
    server.files["/extra.bin"] = b"extra"
    status = sources.fetch("digits", opener=opener, registry=registry)
    assert (status.state, status.note) == ("ok", "")
    assert leftovers(sources.cache_folder() / "digits") == ["extra.bin", "one.bin"]
    asked = len(server.asked)
    assert sources.fetch("digits", opener=opener, registry=registry).state == "ok"
    assert len(server.asked) == asked


def test_fetch_skips_the_files_that_are_good(server, no_local_data, registry):
    both = (*registry["digits"].files, described("two.bin", OTHER, server.base + "/two.bin"))
    registry["digits"] = dataclasses.replace(registry["digits"], files=both, extras=())
    put(no_local_data / "one.bin", CONTENT)
    assert sources.fetch("digits", no_local_data, opener=opener, registry=registry).state == "ok"
    assert server.asked == [("/two.bin", None)]


def test_the_default_opener(server, tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    file = described("one.bin", CONTENT, server.base + "/one.bin")
    assert sources.fetch_file(file, tmp_path).read_bytes() == CONTENT


def test_fetch_mends_a_corrupt_file(server, no_local_data, registry):
    for folder in (no_local_data, no_local_data / "digits"):
        put(folder / "one.bin", b"broken")
        status = sources.fetch("digits", no_local_data, opener=opener, registry=registry)
        assert status.state == "ok"
        assert sources.locate("digits", no_local_data, registry)["one.bin"].read_bytes() == CONTENT


def test_a_missing_extra_is_a_note(no_local_data, registry):
    status = sources.fetch("digits", no_local_data, opener=opener, registry=registry)
    assert status.state == "ok"
    assert status.note.startswith("extra.bin could not be fetched")


def test_fetch_that_fails_leaves_nothing(server, no_local_data, registry):
    server.files["/one.bin"] = OTHER
    with pytest.raises(DataError, match=r"one\.bin could not be fetched"):
        sources.fetch("digits", no_local_data, opener=opener, registry=registry)
    assert leftovers(no_local_data) == []


def test_the_embedded_set_needs_no_fetch(no_local_data):
    def no_network(request):
        raise AssertionError("asked the network")

    assert sources.fetch("mnist-mini", no_local_data, opener=no_network).state == "embedded"


@pytest.mark.parametrize("call", [sources.fetch, sources.verify, sources.locate])
def test_unknown_name(call):
    with pytest.raises(UsageError, match=r"unknown data set 'cifar1' .*; did you mean 'cifar10'?"):
        call("cifar1")


def test_registry_is_complete():
    for name, source in SOURCES.items():
        assert source.name == name
        assert source.title
        assert source.license
        for file in source.files:
            assert file.size
            assert file.checksum
            assert all(url.startswith(("https://", "http://fashion-mnist.")) for url in file.urls)
            assert file.urls
        everything = [*source.files, *source.extras, *(file for layout in source.alternatives for file in layout)]
        for file in everything:
            if file.checksum is not None:
                algorithm, digest = file.checksum.split(":")
                assert len(bytes.fromhex(digest)) == hashlib.new(algorithm, usedforsecurity=False).digest_size
