"""`tools/get_pip.py` against a real package index on this machine."""

from __future__ import annotations

import base64
import hashlib
import http.server
import importlib.metadata
import io
import ssl
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(scope="module")
def pip_wheel():
    """The pip of this environment, packed again as the wheel that it was installed from."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for file in importlib.metadata.files("pip"):
            if ".." not in file.parts and file.suffix != ".pyc" and file.name not in ("INSTALLER", "REQUESTED"):
                archive.write(file.locate(), file.as_posix())
    return content.getvalue()


@pytest.fixture
def get_pip(monkeypatch, pip_wheel):
    """The module, knowing the wheel of this environment."""
    monkeypatch.syspath_prepend(TOOLS)
    import get_pip

    monkeypatch.setattr(get_pip, "WHEEL", f"pip-{importlib.metadata.version('pip')}-py3-none-any.whl")
    monkeypatch.setattr(get_pip, "WHEEL_SHA256", hashlib.sha256(pip_wheel).hexdigest())
    return get_pip


@pytest.fixture
def index(get_pip, pip_wheel):
    """A package index; `pages` maps path to body, `seen` lists (path, Authorization)."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            server.seen.append((self.path, self.headers.get("Authorization")))
            body = server.pages.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.host = f"127.0.0.1:{server.server_port}"
    server.seen = []
    link = f'<a href="../../files/{get_pip.WHEEL}#sha256=x" data-requires-python="&gt;=3.9">{get_pip.WHEEL}</a>'
    older = '<a href="../../files/pip-9.0.1-py3-none-any.whl">pip-9.0.1-py3-none-any.whl</a>'
    server.pages = {
        "/simple/pip/": f"<html><body>{older}\n{link}</body></html>".encode(),
        f"/files/{get_pip.WHEEL}": pip_wheel,
    }
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def python(tmp_path):
    """The interpreter of a new environment without pip."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    return str(tmp_path / "venv/bin/python")


def environ(tmp_path, **more):
    return {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PIP_CONFIG_FILE": "/dev/null", **more}


def failure(get_pip, environment):
    with pytest.raises(get_pip.PipUnavailable) as caught:
        get_pip.install_into("/nonexistent/python", environment)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_pip_comes_from_the_configured_index_and_works(get_pip, index, python, tmp_path):
    get_pip.install_into(python, environ(tmp_path, PIP_INDEX_URL=f"http://{index.host}/simple"))

    said = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"pip {importlib.metadata.version('pip')} from {Path(python).parents[1]}")


def test_name_and_password_reach_the_index_and_no_message(get_pip, index, tmp_path):
    index.pages[f"/files/{get_pip.WHEEL}"] = b"something else"
    told = failure(get_pip, environ(tmp_path, PIP_INDEX_URL=f"http://me:hunter%202@{index.host}/simple/"))

    expected = "Basic " + base64.b64encode(b"me:hunter 2").decode()
    assert index.seen == [("/simple/pip/", expected), (f"/files/{get_pip.WHEEL}", expected)]
    assert "hunter" not in told
    assert index.host in told


def test_a_password_stays_with_the_host_that_it_is_for(get_pip):
    page = f"<a href='https://other.example/{get_pip.WHEEL}'>"

    url = get_pip.find_wheel("https://me:secret@index.example/simple/pip/", page)

    assert url == f"https://other.example/{get_pip.WHEEL}"


def test_another_content_than_the_known_one_is_refused(get_pip, index, tmp_path):
    index.pages[f"/files/{get_pip.WHEEL}"] += b"!"

    told = failure(get_pip, environ(tmp_path, PIP_INDEX_URL=f"http://{index.host}/simple"))

    assert "its content is not the known one" in told
    assert "python3-venv" in told


def test_an_index_without_the_wheel_names_the_other_way(get_pip, index, tmp_path):
    index.pages["/simple/pip/"] = b"<html></html>"

    told = failure(get_pip, environ(tmp_path, PIP_INDEX_URL=f"http://{index.host}/simple"))

    assert f"does not list {get_pip.WHEEL}" in told
    assert "apt-get install python3-venv" in told


def test_an_index_that_refuses_or_is_not_there_is_named(get_pip, index, tmp_path):
    told = failure(get_pip, environ(tmp_path, PIP_INDEX_URL=f"http://{index.host}/other"))
    assert f"http://{index.host}/other/pip/: it answers 404" in told

    index.shutdown()
    index.server_close()
    told = failure(get_pip, environ(tmp_path, PIP_INDEX_URL=f"http://{index.host}/simple"))
    assert "Connection refused; connect to the network, or set PIP_INDEX_URL" in told


def test_pip_conf_is_read_as_pip_reads_it(get_pip, tmp_path):
    def settings(**more):
        return get_pip.read_settings({"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "xdg"), **more})

    user, named = tmp_path / ".config/pip/pip.conf", tmp_path / "named.conf"
    user.parent.mkdir(parents=True)
    user.write_text("[global]\nindex-url = http://user/simple\ncert = /user.pem\n")
    named.write_text("[install]\nindex-url = http://named/simple\n")

    assert settings()["index-url"] == "http://user/simple"
    assert settings()["cert"] == "/user.pem"
    assert settings(PIP_CONFIG_FILE=str(named)) == {"index-url": "http://named/simple", "cert": "/user.pem"}
    assert settings(PIP_CONFIG_FILE="/dev/null") == {"index-url": "https://pypi.org/simple"}
    assert settings(PIP_INDEX_URL="http://env/simple", PIP_CERT="/env.pem") == {
        "index-url": "http://env/simple",
        "cert": "/env.pem",
    }


def test_a_broken_pip_conf_is_named(get_pip, tmp_path):
    broken = tmp_path / "pip.conf"
    broken.write_text("index-url without a section\n")

    told = failure(get_pip, {"HOME": str(tmp_path), "PIP_CONFIG_FILE": str(broken)})

    assert told.startswith(f"cannot read {broken}")


def test_a_machine_without_ca_certificates_trusts_the_hash_alone_but_sends_no_password(get_pip, monkeypatch):
    none = ssl.DefaultVerifyPaths(None, None, "SSL_CERT_FILE", "", "SSL_CERT_DIR", "")
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: none)

    assert get_pip.tls_context("https://index.example/simple/pip/", None).verify_mode == ssl.CERT_NONE
    with pytest.raises(get_pip.PipUnavailable, match="apt-get install ca-certificates"):
        get_pip.tls_context("https://me:secret@index.example/simple/pip/", None)
    # Where nothing is encrypted, there is nothing to trust.
    get_pip.tls_context("http://me:secret@index.example/simple/pip/", None)


def test_a_machine_with_ca_certificates_always_checks_the_server(get_pip, tmp_path, monkeypatch):
    some = ssl.DefaultVerifyPaths("/etc/ssl/cert.pem", None, "SSL_CERT_FILE", "", "SSL_CERT_DIR", "")
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: some)

    assert get_pip.tls_context("https://index.example/simple/pip/", None).verify_mode == ssl.CERT_REQUIRED
    with pytest.raises(get_pip.PipUnavailable, match="cannot read the CA bundle"):
        get_pip.tls_context("https://index.example/simple/pip/", str(tmp_path / "absent.pem"))
