"""Files of another process: what lies outside its root is never read, and nothing there can hang or flood us."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from gputop_llm.sources import rootfs
from gputop_llm.sources.rootfs import RootFs

SECRET = b"a file of the host"


@pytest.fixture(params=[True, False], ids=["openat2", "walk"])
def container(request, tmp_path):
    """A directory that plays a container's root, a host file beside it, and the reader of it in both ways."""
    (tmp_path / "host").mkdir()
    (tmp_path / "host/secret").write_bytes(SECRET)
    root = tmp_path / "container"
    root.mkdir()
    with RootFs(str(root), kernel=request.param) as fs:
        yield root, fs


def refusal(fs, path, limit=1000):
    try:
        content = fs.read(path, limit)
    except OSError as error:
        return error.errno
    pytest.fail(f"{path} was read: {content[:40]!r}")


@pytest.mark.parametrize("path", ["a/f", "/a/f", "./a//f", "../../a/f", "a/../a/f", "/../a/./f"])
def test_paths_are_taken_below_the_root(container, path):
    root, fs = container
    (root / "a").mkdir()
    (root / "a/f").write_bytes(b"inside")
    assert fs.read(path, 1000) == b"inside"


@pytest.mark.parametrize(
    "target",
    ["../../../../../../../etc/passwd", "/etc/passwd", "../host/secret", "a/../../host/secret", "{tmp}/host/secret"],
)
def test_a_link_to_a_file_of_the_host_finds_none(container, tmp_path, target):
    root, fs = container
    (root / "a").mkdir()
    os.symlink(target.format(tmp=tmp_path), root / "config.json")
    os.symlink(target.format(tmp=tmp_path).rpartition("/")[0], root / "folder")
    assert refusal(fs, "/config.json") == errno.ENOENT
    assert refusal(fs, "folder/secret") == errno.ENOENT
    assert refusal(fs, "folder/passwd") == errno.ENOENT


def test_an_absolute_link_means_the_containers_own_file(container):
    root, fs = container
    (root / "etc").mkdir()
    (root / "etc/passwd").write_bytes(b"of the container")
    os.symlink("/etc/passwd", root / "absolute")
    os.symlink("../../../etc/passwd", root / "relative")
    assert fs.read("absolute", 1000) == fs.read("relative", 1000) == b"of the container"


def test_the_hub_caches_own_links_work(container):
    root, fs = container
    (root / "m/blobs").mkdir(parents=True)
    (root / "m/snapshots/abc").mkdir(parents=True)
    (root / "m/blobs/123").write_bytes(b"{}")
    os.symlink("../../blobs/123", root / "m/snapshots/abc/config.json")
    os.symlink("/m", root / "models")
    assert fs.read("/models/snapshots/abc/config.json", 1000) == b"{}"


def test_links_that_go_round_end(container):
    root, fs = container
    os.symlink("b", root / "a")
    os.symlink("a", root / "b")
    os.symlink("loop/loop", root / "loop")
    assert refusal(fs, "a") == errno.ELOOP
    assert refusal(fs, "loop") == errno.ELOOP


def test_a_pipe_without_a_writer_hangs_nobody(container):
    root, fs = container
    os.mkfifo(root / "config.json")
    assert refusal(fs, "config.json") == errno.EINVAL


def test_only_regular_files_are_opened(container, monkeypatch):
    root, fs = container
    (root / "folder").mkdir()
    os.mknod(root / "socket", stat.S_IFSOCK | 0o600)
    os.symlink("folder", root / "link")
    opened = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, flags, *a, **k: opened.append(flags) or real(path, flags, *a, **k))
    for name in ("folder", "socket", "link"):
        assert refusal(fs, name) == errno.EINVAL
    # Pointing at a file does nothing to it.
    assert all(flags & os.O_PATH for flags in opened)


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no /dev/zero")
def test_a_device_is_not_opened(tmp_path):
    with RootFs("/dev") as fs:
        assert refusal(fs, "zero") == errno.EINVAL


@pytest.mark.parametrize("size", [1001, 1 << 30])
def test_a_file_above_the_limit_is_not_read(container, size):
    root, fs = container
    with open(root / "f", "wb") as file:
        file.truncate(size)  # sparse: takes no space
    assert refusal(fs, "f") == errno.EFBIG
    with open(root / "f", "wb") as file:
        file.truncate(1000)
    assert len(fs.read("f", 1000)) == 1000


def test_a_file_that_grows_meanwhile_is_not_read_on(container, monkeypatch):
    root, fs = container
    (root / "f").write_bytes(b"x" * 2000)
    real = os.fstat

    def smaller(handle):
        found = real(handle)
        return os.stat_result((*found[:6], min(found.st_size, 10), *found[7:])) if found.st_size == 2000 else found

    monkeypatch.setattr(rootfs.os, "fstat", smaller)
    assert refusal(fs, "f") == errno.EFBIG


def test_files_that_have_no_size_are_not_read_at_all(container):
    """procfs and tracefs: to read them may take from them, or wait."""
    with RootFs("/proc/self") as fs:
        assert fs.read("status", 1000) == b""


def test_links_of_procfs_to_anywhere_are_not_followed():
    with RootFs("/") as fs:
        assert refusal(fs, "/proc/self/root/etc/hostname") == errno.ELOOP
        assert refusal(fs, "/proc/self/fd/0") in (errno.ELOOP, errno.ENOENT)


def test_links_of_procfs_end_inside_the_root_when_walked(tmp_path):
    handle = os.open(tmp_path, os.O_RDONLY)
    try:
        with RootFs("/proc", kernel=False) as fs:
            # The text of the link is taken below /proc, where there is no such path.
            assert refusal(fs, f"self/fd/{handle}/host") == errno.ENOENT
    finally:
        os.close(handle)


def test_names_of_a_directory_are_bounded(container):
    root, fs = container
    (root / "d").mkdir()
    for n in range(20):
        (root / f"d/{n}").touch()
    assert len(fs.names("d", 5)) == 5
    assert sorted(fs.names("/d", 100), key=int) == [str(n) for n in range(20)]
    with pytest.raises(NotADirectoryError):
        fs.names("d/3", 5)
    with pytest.raises(FileNotFoundError):
        fs.names("e", 5)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM])
def test_where_openat2_is_missing_paths_are_walked(tmp_path, monkeypatch, code):
    (tmp_path / "f").write_bytes(b"walked")

    def missing(_root, path):
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(rootfs, "_openat2", missing)
    with RootFs(str(tmp_path)) as fs:
        assert fs.read("f", 10) == b"walked"


def test_what_openat2_refuses_is_not_tried_otherwise(tmp_path, monkeypatch):
    (tmp_path / "f").write_bytes(b"x")

    def refuses(_root, path):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(rootfs, "_openat2", refuses)
    with RootFs(str(tmp_path)) as fs:
        assert refusal(fs, "f") == errno.EACCES


def test_every_handle_is_given_back(container):
    root, fs = container
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/f").write_bytes(b"x")
    os.symlink("/a/b", root / "l")
    os.mkfifo(root / "p")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        for path in ("a/b/f", "l/f", "l/../../a/b/f", "a/b/none", "none/f", "p", "a/b/f/x", "l"):
            try:
                fs.read(path, 10)
            except OSError:
                continue
        fs.names("l", 10)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_root_that_is_gone_says_so(tmp_path):
    with pytest.raises(FileNotFoundError):
        RootFs(str(tmp_path / "none"))
