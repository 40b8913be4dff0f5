import os
import time
from pathlib import Path

import pytest

from gpuyard_agent import checkpoints
from gpuyard_agent.checkpoints import CheckpointWatch, newest_write
from tests.agent.conftest import Eventually, Node
from tests.agent.fake_server import FakeServer


def written(path: Path, ago_s: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("weights")
    os.utime(path, (time.time() - ago_s,) * 2)
    return path


def age(folder: Path) -> float:
    newest = newest_write(str(folder))
    assert newest is not None
    return time.time() - newest


def test_the_newest_file_counts_however_deep(tmp_path: Path) -> None:
    written(tmp_path / "last.npz", 500)
    written(tmp_path / "step-100" / "shard-0" / "w.bin", 100)
    assert age(tmp_path) == pytest.approx(100, abs=5)


def test_no_folder_and_no_file_is_no_checkpoint(tmp_path: Path) -> None:
    assert newest_write(str(tmp_path / "gone")) is None
    (tmp_path / "empty").mkdir()
    assert newest_write(str(tmp_path)) is None


def test_a_look_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        written(tmp_path / f"{number}.bin", 10)
    deep = tmp_path.joinpath(*"abcdefghijkl") / "w.bin"
    written(deep, 0)
    assert age(tmp_path) == pytest.approx(10, abs=5)  # too deep to be seen
    (tmp_path / "loop").symlink_to(tmp_path)
    monkeypatch.setattr(checkpoints, "MOST_ENTRIES", 5)
    assert newest_write(str(tmp_path)) is not None


def test_a_replica_that_ended_is_forgotten(tmp_path: Path, eventually: Eventually) -> None:
    written(tmp_path / "w.bin", 60)
    watch = CheckpointWatch()
    watch.update({"r": str(tmp_path)})
    eventually(lambda: watch.written_s("r") is not None)
    watch.update({})
    assert watch.written_s("r") is None


def test_the_age_goes_along_with_the_report(server: FakeServer, node: Node) -> None:
    program = ["sh", "-c", "mkdir -p saved && touch saved/w.bin && sleep 60"]
    replica_id = server.order(program, checkpoint_dir="saved")
    without = server.order(["sleep", "60"])
    node.turn_until(lambda: server.state(replica_id) == server.state(without) == "running")
    node.agent._checkpoints._looked_s.clear()  # the first look may have come before the file
    node.turn_until(lambda: server.reports[replica_id]["checkpoint_ago_s"] is not None)
    assert server.reports[replica_id]["checkpoint_ago_s"] < 15
    assert server.reports[without]["checkpoint_ago_s"] is None
