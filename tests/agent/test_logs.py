import sys
from pathlib import Path

import pytest

from gpuyard_agent import clock
from gpuyard_agent.logs import CHUNK_BYTES, LogSender, as_text, without_broken_end
from gpuyard_agent.protocol import LogAck, LogChunk
from gpuyard_agent.replicas import ReplicaFolder
from gpuyard_agent.spool import SpoolWriter, segments
from tests.agent.conftest import Node
from tests.agent.fake_server import FakeServer
from tests.agent.test_reconcile import ID, make_order


class Output:
    """One replica's stdout on disk, and a sender that a restart replaces."""

    def __init__(self, path: Path) -> None:
        (path / "logs").mkdir(parents=True)
        self.folder = ReplicaFolder(str(path), make_order(), clock.boot_id())
        self.writer = SpoolWriter(str(path / "logs"), "stdout", 1_000_000)
        self.sender = LogSender()

    def send(self, *, is_complete: bool = False) -> list[LogChunk]:
        return self.sender.collect([(self.folder, is_complete)])

    def bounds(self) -> list[tuple[int, int]]:
        return [(chunk["offset"], chunk["bytes"]) for chunk in self.send()]

    def ack(self, offset: int) -> None:
        self.sender.acknowledge([self.folder], [LogAck(ID, "stdout", offset)])


@pytest.fixture
def output(tmp_path: Path) -> Output:
    return Output(tmp_path / "replica")


def test_sends_again_until_acknowledged(output: Output) -> None:
    output.writer.write(b"one\n")
    assert output.bounds() == [(0, 4)]
    output.writer.write(b"two\n")
    assert output.bounds() == [(0, 4), (4, 4)]  # the first piece keeps its bounds
    output.ack(4)
    assert output.bounds() == [(4, 4)]
    output.ack(8)
    assert output.bounds() == []
    assert output.sender.is_finished(output.folder)


def test_a_restarted_agent_sends_the_same_pieces(output: Output) -> None:
    output.writer.write(b"one\n")
    output.send()
    output.writer.write(b"two\n")
    output.sender = LogSender()
    assert output.bounds() == [(0, 4), (4, 4)]
    output.ack(4)
    output.sender = LogSender()
    assert output.bounds() == [(4, 4)]


@pytest.mark.parametrize("offset", [-1, 0, 9, 10**9])
def test_an_impossible_ack_changes_nothing(output: Output, offset: int) -> None:
    output.writer.write(b"12345678")
    output.send()
    output.ack(offset)
    assert output.bounds() == [(0, 8)]


def test_an_ack_inside_a_piece_is_followed(output: Output) -> None:
    output.writer.write(b"12345678")
    output.send()
    output.ack(5)
    assert output.bounds() == [(5, 3)]


def test_pieces_are_small_and_end_between_characters(output: Output) -> None:
    text = "€" * 50_000  # 3 bytes each, so 64 KiB ends inside one
    output.writer.write(text.encode())
    chunks = output.send()
    assert max(chunk["bytes"] for chunk in chunks) <= CHUNK_BYTES
    assert "".join(chunk["data"] for chunk in chunks) == text


def test_half_a_character_waits_for_its_other_half(output: Output) -> None:
    euro = "€".encode()
    output.writer.write(b"5 " + euro[:2])
    assert [chunk["data"] for chunk in output.send()] == ["5 "]
    output.writer.write(euro[2:])
    assert [chunk["data"] for chunk in output.send()] == ["5 ", "€"]


def test_half_a_character_at_the_end_is_sent(output: Output) -> None:
    output.writer.write("€".encode()[:2])
    assert [chunk["data"] for chunk in output.send(is_complete=True)] == ["\ufffd"]


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        (b"", b""),
        (b"abc", b"abc"),
        (b"ab\xc3", b"ab"),
        (b"ab\xf0\x9f\x98", b"ab"),
        ("😀".encode(), "😀".encode()),
        (b"\x80\x80\x80\x80", b"\x80\x80\x80\x80"),
        (b"\xff", b""),
    ],
)
def test_without_broken_end(data: bytes, kept: bytes) -> None:
    assert without_broken_end(data) == kept


def test_what_no_database_stores_is_replaced() -> None:
    assert as_text(b"a\0b\xff") == "a\ufffdb\ufffd"


def test_sent_segments_are_deleted_and_make_room(output: Output, tmp_path: Path) -> None:
    folder = str(tmp_path / "replica" / "logs")
    writer = SpoolWriter(folder, "stderr", 1000)
    writer.write(b"x" * 1500)
    assert [first for first, _ in segments(folder, "stderr")] == [0, 500]
    output.send()
    output.sender.acknowledge([output.folder], [LogAck(ID, "stderr", 1000)])
    assert [first for first, _ in segments(folder, "stderr")] == [500]
    writer.write(b"later")
    writer.close()
    assert "500 bytes of output were dropped" in "".join(chunk["data"] for chunk in output.send())


def test_one_talker_does_not_silence_the_rest(tmp_path: Path) -> None:
    outputs = [Output(tmp_path / f"replica{number}") for number in range(6)]
    for output in outputs:
        output.writer.write(b"\x1b" * 300_000)  # six bytes each as JSON
    sender = LogSender()
    served: set[int] = set()
    for _ in range(6):
        chunks = sender.collect([(output.folder, False) for output in outputs])
        assert 0 < sum(len(chunk["data"]) * 6 for chunk in chunks) <= 1024 * 1024
        served.add(len(chunks))
    assert served == {2}


def test_long_output_arrives_whole_over_lossy_syncs(server: FakeServer, node: Node) -> None:
    lines = 40_000
    replica_id = server.order(
        [sys.executable, "-S", "-c", f"for i in range({lines}): print(f'zeile {{i:06}} ä')"]
    )
    server.faults.extend(["answer_lost", "lost", "replay", "error"] * 2)
    node.turn_until(lambda: server.text(replica_id).endswith(f"{lines - 1:06} ä\n"))
    assert server.text(replica_id) == "".join(f"zeile {number:06} ä\n" for number in range(lines))


def test_a_forgotten_replica_waits_for_its_last_output(
    server: FakeServer, node: Node, state_dir: Path
) -> None:
    server.acks_logs = False
    replica_id = server.order(["sh", "-c", "echo last words"])
    node.turn_until(lambda: server.state(replica_id) == "exited" and server.reports[replica_id]["clean"])
    server.withdraw(replica_id)
    server.forget.add(replica_id)
    node.turn()
    assert (state_dir / "replicas" / replica_id).exists()
    server.acks_logs = True
    node.turn_until(lambda: not (state_dir / "replicas" / replica_id).exists())
