"""Files held by one process at a time."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from layermerge.errors import ArtifactError
from layermerge.files import exclusive


def test_a_file_is_held_until_it_is_let_go_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rows.jsonl"
    with exclusive(path, "the table"):
        path.write_bytes(b"kept")
        with (
            pytest.raises(ArtifactError, match=r"^the table is being written by another process; wait for it or stop"),
            exclusive(path, "the table"),
        ):
            pass
    with exclusive(path, "the table"):
        assert path.read_bytes() == b"kept"
    assert list(tmp_path.rglob("*")) == [path.parent, path]


def test_a_process_forked_meanwhile_does_not_keep_the_lock(tmp_path: Path) -> None:
    release, held = os.pipe()
    with exclusive(tmp_path / "lock", "it"):
        child = os.fork()
        if child == 0:
            os.close(held)
            os.read(release, 1)  # until the parent lets go
            os._exit(0)
    try:
        with exclusive(tmp_path / "lock", "it"):
            pass
    finally:
        os.close(held)
        os.waitpid(child, 0)
        os.close(release)


def test_a_killed_process_keeps_no_lock(tmp_path: Path) -> None:
    told, tell = os.pipe()
    holder = os.fork()
    if holder == 0:
        with exclusive(tmp_path / "lock", "it"):
            os.write(tell, b"held")
            time.sleep(600)
    assert os.read(told, 4) == b"held"
    with pytest.raises(ArtifactError, match="another process"), exclusive(tmp_path / "lock", "it"):
        pass
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    os.close(told)
    os.close(tell)
    with exclusive(tmp_path / "lock", "it"):
        pass


def test_a_place_that_cannot_be_written_is_one_line_and_errors_of_the_work_pass(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "lock"):
        with pytest.raises(ArtifactError, match=r"^it cannot be written: .*directory"), exclusive(path, "it"):
            pass
    with pytest.raises(ConnectionError, match="of the work"), exclusive(tmp_path / "lock", "it"):
        raise ConnectionError("of the work")
