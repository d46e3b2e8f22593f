"""The tables of ``make bench``."""

from collections.abc import Mapping

from bench import report
from bench.__main__ import PIECES, parsed
from bench.end_to_end import Run
from bench.latency import Latency
from bench.memory import Held
from bench.relay import C_CLIENT, PUBLISHER, RELAY, Drained


def run(side: str, rate: float, costs: Mapping[str, float]) -> Run:
    return Run(side, 1000, rate + 10, rate, costs, 0.05, 0.5)


def test_the_end_to_end_table_has_shares_of_each_peer() -> None:
    table = report.end_to_end(
        [
            run("Tenure", 500, {"coordinator": 300, "sender": 100}),
            run("FastStream", 1000, {"worker": 150, "sender": 50}),
            run("Celery", 250, {"worker": 350, "sender": 450}),
            run("Tenure", 600, {"coordinator": 320, "sender": 100}),
            run("FastStream", 800, {"worker": 150, "sender": 50}),
            run("Celery", 300, {"worker": 350, "sender": 450}),
        ],
        cores=2,
    )
    assert "| Tenure | 560 (510 610) | 550 (500 600) |" in table
    assert "- FastStream: 0.62 (0.50 0.75)" in table
    assert "- Celery: 2.00 (2.00 2.00)" in table
    assert "| microseconds | coordinator | sender | worker | all |" in table.replace(
        "processor time a task, ", ""
    )
    assert "| Tenure | 310 | 100 |  | 410 |" in table
    assert "| Celery |  | 450 | 350 | 800 |" in table
    assert "- Celery: 2 cores to itself allow at most 2,500/s" in table


def test_tenure_alone_has_no_shares() -> None:
    assert "share" not in report.end_to_end([run("Tenure", 500, {"sender": 100})], cores=2)


def test_the_latency_table_shows_every_round_and_what_a_task_costs() -> None:
    table = report.latency(
        [
            Latency("Tenure", 800, 5.04, 9, 20, {"relay": 500, "sender": 100}, 0.1),
            Latency("Tenure", 800, 7, 11, 40, {"relay": 700, "sender": 100}, 0.3),
        ]
    )
    assert "| Tenure | 6.0 (5.0 7.0) | 10.0 (9.0 11.0) | 30.0 (20.0 40.0) | 800 | 0.20" in table
    assert "| Tenure | 600 | 100 | 700 |" in table


def test_the_relay_table_has_cores_and_the_share_of_the_c_client() -> None:
    ours = Drained(RELAY, 1000, 20_000, {PUBLISHER: 20, "postgres": 5, "rabbitmq": 15}, 0.1)
    theirs = Drained(C_CLIENT, 1000, 40_000, {PUBLISHER: 5, "rabbitmq": 15}, 0.1)
    table = report.relay([ours, theirs])
    assert f"| {RELAY} | 1,000 | 20,000 (20,000) | 0.40 (0.40) | 0.10 (0.10) |" in table
    assert "The relay as a share of the C client, round by round: 0.50 (0.50)" in table
    assert f"| {RELAY} | 20 | 5 | 15 | 40 |" in table
    assert f"| {C_CLIENT} | 5 |  | 15 | 20 |" in table


def test_without_the_c_client_there_is_no_share() -> None:
    ours = Drained(RELAY, 1000, 20_000, {PUBLISHER: 20}, 0.1)
    assert "share" not in report.relay([ours])


def test_the_memory_table_has_a_line_for_each_situation() -> None:
    table = report.memory([Held("relay", "backlog of 1,000,000 rows", 70.4, 69.6, 70)])
    assert "| relay | backlog of 1,000,000 rows | 70 | 70 | 70 |" in table


def test_every_piece_is_measured_unless_some_are_asked_for() -> None:
    assert parsed([]).only == list(PIECES)
    assert parsed(["--only", "relay", "memory"]).only == ["relay", "memory"]
