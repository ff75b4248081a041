"""Files are written all or none, whatever fails; permissions are kept, and nothing is left beside."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from setsquare.errors import InputError
from setsquare.storage import files, write_files


def fail_at(count: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one of the renames fail."""
    done = list[Path]()
    rename = Path.replace

    def replace(self: Path, target: Path) -> Path:
        if len(done) == count:
            raise error
        done.append(target)
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", replace)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("links", [True, False])
def test_all_or_none_when_a_later_rename_fails(
    error: BaseException, count: int, links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    first, new, last = (tmp_path / name for name in ("first", "new", "last"))
    first.write_bytes(b"first before")
    last.write_bytes(b"last before")
    fail_at(count, error, monkeypatch)
    if not links:

        def refuse(*_: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(InputError if isinstance(error, OSError) else KeyboardInterrupt):
        write_files({first: b"after", new: b"after", last: b"after"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "last"]
    assert (first.read_bytes(), last.read_bytes()) == (b"first before", b"last before")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_a_file_that_is_replaced_keeps_its_permissions(mode: int, tmp_path: Path):
    secret, other = tmp_path / "secret", tmp_path / "other"
    secret.write_bytes(b"before")
    secret.chmod(mode)
    write_files({secret: b"after", other: b"new"})
    assert secret.read_bytes() == b"after" and stat.S_IMODE(secret.stat().st_mode) == mode
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    assert other.stat().st_mode == plain.stat().st_mode


def test_what_dead_processes_left_is_removed(tmp_path: Path):
    target = tmp_path / "model"
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    machine = files._machine()
    dead = tmp_path / f".model.{machine}-{child.pid}-0123abcd.part"
    kept = [
        tmp_path / f".model.{machine}-{os.getppid()}-0123abcd.part",  # still running
        tmp_path / f".model.00000000-{child.pid}-0123abcd.part",  # on another machine
        tmp_path / f".other.{machine}-{child.pid}-0123abcd.part",  # of another file
        tmp_path / ".model.part",
    ]
    for path in (dead, *kept):
        path.write_bytes(b"half")
    write_files({target: b"after"})
    assert sorted(tmp_path.iterdir()) == sorted([target, *kept])


SLOW = """
import sys, time
from pathlib import Path
from setsquare.cli import arguments
from setsquare.storage import files

def wait(parts):
    print("ready", flush=True)
    time.sleep(60)

files._replace_all = wait
arguments.run = lambda: RUN()
def RUN():
    try:
        files.write_files({Path(sys.argv[1]): b"after"})
    except KeyboardInterrupt:
        return arguments.INTERRUPTED
arguments.main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_process_that_is_ended_leaves_nothing(number: signal.Signals, code: int, tmp_path: Path):
    target = tmp_path / "model"
    target.write_bytes(b"before")
    command = [sys.executable, "-c", SLOW, str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        time.sleep(0.1)
        child.send_signal(number)
        assert child.wait(20) == code and child.stderr is not None and child.stderr.read() == b""
    assert list(tmp_path.iterdir()) == [target] and target.read_bytes() == b"before"


def test_what_replaces_a_file_is_at_first_for_its_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    secret, modes, real = tmp_path / "secret", list[int](), os.open
    secret.write_bytes(b"before")
    monkeypatch.setattr(os, "open", lambda *words: modes.append(words[2]) or real(*words))
    write_files({secret: b"after", tmp_path / "new": b"new"})
    assert sorted(modes) == [0o600, 0o666]


def test_two_files_are_written_both_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first, last = tmp_path / "first", tmp_path / "last"
    first.write_bytes(b"before")
    fail_at(1, OSError(28, "No space left on device"), monkeypatch)
    with pytest.raises(InputError):
        write_files({first: b"after", last: b"after"})
    assert first.read_bytes() == b"before" and not last.exists()


def test_a_file_that_is_in_its_place_stays_there_if_the_process_is_interrupted(tmp_path, monkeypatch) -> None:
    part, place = tmp_path / "part", tmp_path / "place"
    part.write_bytes(b"new")
    rename = Path.replace

    def interrupted(self: Path, target: Path) -> None:
        rename(self, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files._replace_all({part: place})
    assert place.read_bytes() == b"new" and [path.name for path in tmp_path.iterdir()] == ["place"]
