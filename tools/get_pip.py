"""Puts pip into a virtual environment where Python came without `ensurepip`.

Finds one known pip wheel on the package index that pip itself would use
(PIP_INDEX_URL, pip.conf, else PyPI), checks its hash, and lets it install itself.
The hash is written here, so that a machine without CA certificates can do it too.
"""

from __future__ import annotations

import base64
import configparser
import hashlib
import html
import http.client
import os
import re
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request

WHEEL = "pip-26.3-py3-none-any.whl"
WHEEL_SHA256 = "f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13"
#: Longest silence of the index, in seconds.
TIMEOUT_S = 30
OTHER_WAY = "install python3-venv (Debian, Ubuntu: apt-get install python3-venv) and start again"


class PipUnavailable(Exception):
    """Why there is no pip, and what to do, in one sentence."""


def install_into(python: str, environ: dict[str, str] | None = None) -> None:
    """Installs pip into the environment of the interpreter `python`; raises PipUnavailable."""
    environ = dict(os.environ) if environ is None else environ
    settings = read_settings(environ)
    page_url = settings["index-url"].rstrip("/") + "/pip/"
    context = tls_context(page_url, settings.get("cert"))
    content = fetch(find_wheel(page_url, fetch(page_url, context).decode("utf-8", "replace")), context)
    if hashlib.sha256(content).hexdigest() != WHEEL_SHA256:
        raise PipUnavailable(
            f"cannot use {WHEEL} from {shown(page_url)}: its content is not the known one; {OTHER_WAY}"
        )
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, WHEEL)
        with open(path, "wb") as file:
            file.write(content)
        # A wheel is a zip file that Python can run a package from.
        command = [python, os.path.join(path, "pip"), "install", "--quiet", "--no-index", path]
        done = subprocess.run(command, env={**environ, "PIP_USER": "0"}, capture_output=True, text=True, check=False)
    if done.returncode:
        last_line = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise PipUnavailable(f"cannot put pip into .venv: {last_line}; {OTHER_WAY}")


def read_settings(environ: dict[str, str]) -> dict[str, str]:
    """pip's own `index-url` and, where set, `cert`: environment before PIP_CONFIG_FILE before user before machine."""
    named = environ.get("PIP_CONFIG_FILE", "")
    home = environ.get("HOME") or os.path.expanduser("~")
    files = [
        *(os.path.join(d, "pip", "pip.conf") for d in reversed(environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":"))),
        "/etc/pip.conf",
        os.path.join(home, ".pip", "pip.conf"),
        os.path.join(environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"), "pip", "pip.conf"),
        named,
    ]
    settings = {"index-url": "https://pypi.org/simple"}
    for path in [] if named == os.devnull else files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            raise PipUnavailable(f"cannot read {path}: {str(error).splitlines()[0]}; mend it") from None
        for section in ("global", "install"):
            for key in ("index-url", "cert"):
                settings[key] = parser.get(section, key, fallback=settings.get(key, ""))
    settings["index-url"] = environ.get("PIP_INDEX_URL") or settings["index-url"]
    settings["cert"] = environ.get("PIP_CERT") or settings.get("cert", "")
    return {key: value for key, value in settings.items() if value}


def tls_context(url: str, ca_bundle: str | None) -> ssl.SSLContext:
    """How to trust the server at `url`.

    A bare Debian has no CA certificates at all. The wheel's hash protects it there,
    so the server is then not verified, unless a password would be sent to it.
    """
    paths = ssl.get_default_verify_paths()
    if ca_bundle or paths.cafile or (paths.capath and os.listdir(paths.capath)):
        try:
            return ssl.create_default_context(cafile=ca_bundle)
        except OSError as error:
            raise PipUnavailable(
                f"cannot read the CA bundle {ca_bundle}: {error.strerror}; mend PIP_CERT or pip.conf"
            ) from None
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "https" and "@" in parts.netloc:
        raise PipUnavailable(
            f"cannot trust {shown(url)} with a password: this machine has no CA certificates; "
            "apt-get install ca-certificates"
        )
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def find_wheel(page_url: str, page: str) -> str:
    """Where the project page at `page_url` (PEP 503) links to the wheel; raises PipUnavailable."""
    link = re.search(rf"""href\s*=\s*["']([^"'#]*\b{re.escape(WHEEL)}[^"'#]*)""", page)
    if not link:
        raise PipUnavailable(f"cannot get pip: {shown(page_url)} does not list {WHEEL}; {OTHER_WAY}")
    url = urllib.parse.urljoin(page_url, html.unescape(link[1]))
    credentials, _, host = urllib.parse.urlsplit(page_url).netloc.rpartition("@")
    parts = urllib.parse.urlsplit(url)
    return parts._replace(netloc=f"{credentials}@{host}").geturl() if credentials and parts.netloc == host else url


def fetch(url: str, context: ssl.SSLContext) -> bytes:
    """The body at `url`; name and password in the URL are sent as basic authentication."""
    parts = urllib.parse.urlsplit(url)
    credentials, _, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(parts._replace(netloc=host).geturl(), headers={"Accept": "text/html, */*;q=0.1"})
    if credentials:
        token = base64.b64encode(urllib.parse.unquote(credentials).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {token}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as error:
        why = f"it answers {error.code} {error.reason}; check PIP_INDEX_URL or pip.conf"
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            why = "its certificate is not trusted; set PIP_CERT to your CA bundle"
        else:
            why = f"{error.reason}; connect to the network, or set PIP_INDEX_URL to a mirror"
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = f"{error}; try again, or set PIP_INDEX_URL to a mirror"
    raise PipUnavailable(f"cannot reach the package index {shown(url)}: {why}")


def shown(url: str) -> str:
    """`url` without the name and password in it."""
    parts = urllib.parse.urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
