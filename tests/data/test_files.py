import hashlib
import http.server
import os
import threading
from pathlib import Path
from unittest import mock

import pytest

from fljax._core import storage
from fljax.data import download, downloads, locate

CONTENT = b"salt water " * 1000
SHA = hashlib.sha256(CONTENT).hexdigest()
REMEDY = "A file for tests; make it yourself."


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """An empty user folder and an empty cache."""
    monkeypatch.setenv("FLJAX_DATA", str(tmp_path / "user"))
    monkeypatch.setenv("FLJAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "user", tmp_path / "cache" / "data"


def put(folder, content=CONTENT):
    path = folder / "set" / "file.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def server(tmp_path):
    """The address of a local server of one good file, one bad and one cut short."""
    contents = {"/good": CONTENT, "/bad": CONTENT[:-1], "/short": CONTENT}
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)
            content = contents.get(self.path)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[:100] if self.path == "/short" else content)

        def log_message(self, format, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}", requests
        httpd.shutdown()
        thread.join()


def test_the_users_folder_comes_before_the_cache(places):
    user, cache = places
    cached = put(cache)
    assert locate("set/file.bin", SHA, REMEDY) == cached
    in_folder = put(user)
    assert locate("set/file.bin", SHA, REMEDY) == in_folder


def test_a_missing_file_is_reported_with_its_source(places):
    user, cache = places
    with pytest.raises(FileNotFoundError) as caught:
        locate("set/file.bin", SHA, REMEDY)
    message = str(caught.value)
    for part in (user / "set/file.bin", cache / "set/file.bin", REMEDY, "set FLJAX_DATA to"):
        assert str(part) in message


def test_without_the_variable_the_message_names_it(places, monkeypatch):
    monkeypatch.setenv("FLJAX_DATA", "")
    with pytest.raises(FileNotFoundError, match="FLJAX_DATA is not set"):
        locate("set/file.bin", SHA, REMEDY)
    path = put(places[1])
    assert locate("set/file.bin", SHA, REMEDY) == path


def test_the_cache_is_in_the_home_by_default(tmp_path, monkeypatch):
    monkeypatch.delenv("FLJAX_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert downloads.cache_folder() == tmp_path / ".cache" / "fljax" / "data"


def test_a_user_without_a_home_has_a_cache_too(places, tmp_path, monkeypatch):
    """Containers may have no HOME and a user number without a name."""
    monkeypatch.delenv("FLJAX_CACHE")
    monkeypatch.setattr(Path, "home", mock.Mock(side_effect=RuntimeError("no home")))
    monkeypatch.setattr(storage.tempfile, "tempdir", str(tmp_path))
    storage._temporary_cache.cache_clear()
    folder = tmp_path / f"fljax-{os.geteuid()}"
    assert downloads.cache_folder() == folder / "data"
    assert folder.stat().st_mode & 0o077 == 0
    path = put(downloads.cache_folder())
    assert locate("set/file.bin", SHA, REMEDY) == path
    storage._temporary_cache.cache_clear()


def test_other_bytes_are_refused_even_with_a_good_copy_in_the_cache(places):
    user, cache = places
    put(cache)
    path = put(user, b"other")
    with pytest.raises(ValueError, match=f"{path} is corrupted.*{SHA}.*found [0-9a-f]{{64}}"):
        locate("set/file.bin", SHA, REMEDY)


def test_a_file_is_read_once_until_it_changes(places, monkeypatch):
    path = put(places[0])
    read = []
    digest = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *args: read.append(1) or digest(*args))
    for _ in range(3):
        locate("set/file.bin", SHA, REMEDY)
    assert len(read) == 1
    path.write_bytes(CONTENT + b"!")
    with pytest.raises(ValueError, match="corrupted"):
        locate("set/file.bin", SHA, REMEDY)


def test_download_fills_the_cache_once(places, server):
    url, requests = server
    path = download(f"{url}/good", "set/file.bin", SHA)
    assert path == places[1] / "set/file.bin"
    assert path.read_bytes() == CONTENT
    assert download(f"{url}/good", "set/file.bin", SHA) == path
    assert requests == ["/good"]
    assert locate("set/file.bin", SHA, REMEDY) == path


def test_download_reads_file_addresses(tmp_path):
    source = put(tmp_path / "elsewhere")
    assert download(source.as_uri(), "a.bin", SHA).read_bytes() == CONTENT


def test_mirrors_are_tried_in_turn(places, server):
    url, requests = server
    mirrors = [f"{url}/{name}" for name in ("absent", "bad", "short", "good", "never")]
    assert download(mirrors, "set/file.bin", SHA).read_bytes() == CONTENT
    assert requests == ["/absent", "/bad", "/short", "/good"]
    assert [p.name for p in (places[1] / "set").iterdir()] == ["file.bin"]


def test_a_failed_download_reports_its_cause_and_leaves_no_file(places, server):
    url, _ = server
    with pytest.raises(OSError, match="could not be downloaded") as caught:
        download([f"{url}/absent", f"{url}/bad"], "set/file.bin", SHA)
    message = str(caught.value)
    for part in ("/absent: HTTPError", "404", f"expected SHA-256 {SHA}", "set FLJAX_DATA"):
        assert part in message
    assert list((places[1] / "set").iterdir()) == []


def test_a_corrupt_cached_file_is_replaced(places, server):
    path = put(places[1], b"cut short")
    assert download(f"{server[0]}/good", "set/file.bin", SHA) == path
    assert path.read_bytes() == CONTENT


def test_an_interrupted_download_leaves_nothing(places, server, monkeypatch):
    def interrupted(*args):
        args[1].write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(downloads, "_fetch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        download(f"{server[0]}/good", "set/file.bin", SHA)
    assert list((places[1] / "set").iterdir()) == []
