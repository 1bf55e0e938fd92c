"""The judge of a simulated fleet's log finds what is wrong, and nothing where nothing is."""

import sqlite3

import pytest

from sickbay.testing import judge

MINE, OTHER = "sickbay:n1.a", "sickbay:n2.b"
INVENTORY = [
    {"node": f"n{i}", "pool": "p", "group": f"g{(i - 1) // 2}"} for i in range(1, 7)
]  # n1 and n2 are of one group


class Log:
    """Rows in order, a second apart."""

    def __init__(self):
        self.rows = []

    def add(self, kind, node="n1", **more):
        self.rows.append({"kind": kind, "node": node, "wall": float(len(self.rows)), **more})
        return self

    def close(self, node="n1", reason="hard_fail:xid_48", mark=None):
        return self.add("gate_closed", node, mark=mark or f"sickbay:{node}.a", reason=reason)

    def open(self, node="n1", mark=None):
        return self.add("gate_opened", node, mark=mark or f"sickbay:{node}.a")

    def diag(self, node="n1", code=0, tests="software,memory"):
        argv = ["dcgmi", "diag", "-r", tests]
        return self.add("tool_run", node, tool="dcgmi", argv=argv, exit=code)


def unproven(log, **more):
    return judge.judge_returns(log.rows, **more).unproven


def test_two_passes_after_the_last_treatment_are_a_proof():
    log = Log().close().diag(code=1).add("gpu_reset").diag().diag().open()
    assert judge.judge_returns(log.rows) == judge.Returns(proven=1)


@pytest.mark.parametrize("act", sorted(judge.TREATED))
def test_a_pass_from_before_a_treatment_counts_for_nothing(act):
    assert unproven(Log().close().diag().add(act).diag().open())


def test_a_failing_run_or_one_that_sees_something_else_is_no_proof():
    assert unproven(Log().close().diag().diag(code=1).open())
    assert unproven(Log().close().diag().diag(tests="software,pcie").open())
    assert unproven(Log().close(reason="never heard of").diag().diag().open())
    assert unproven(Log().close().open())


def test_what_a_person_released_is_no_return_and_the_next_repair_of_the_node_still_owes():
    log = Log().close().open().close(mark="sickbay:n1.b").open(mark="sickbay:n1.b")
    found = judge.judge_returns(log.rows, by_person={"n1.a"})
    assert (found.proven, found.by_person, len(found.unproven)) == (0, 1, 1)


def test_withheld_and_borrowed_nodes_owe_no_proof_and_others_marks_are_not_ours():
    log = Log()
    for mark in ("sickbay:withheld.n1", "sickbay:borrow:n2.a", "drained by ann"):
        log.close(mark=mark).open(mark=mark)
    assert judge.judge_returns(log.rows) == judge.Returns()
    assert judge.foreign_touched(log.rows) == ["n1: drained by ann was taken away"]


@pytest.mark.parametrize(
    ("argv", "tests"),
    [
        (["diag", "-r", "1"], {"software"}),
        (["diag", "-r", "2", "-j"], {"software", "memory", "pcie"}),
        (["diag", "-j", "-r", "pcie,memory"], {"pcie", "memory"}),
    ],
)
def test_the_tests_of_a_run_by_level_or_name(argv, tests):
    assert judge.tests_run(argv) == tests


def over(log, *, allowance=9, window_s=100.0, out_at_once=9):
    limits = {"allowance": allowance, "window_s": window_s, "out_at_once": out_at_once}
    return judge.over_budget(log.rows, INVENTORY, **limits)


def test_budgets_that_were_overdrawn_are_named_and_kept_ones_are_not():
    log = Log().close("n1").close("n3").open("n1").close("n5")
    assert over(log, allowance=3, out_at_once=2) == []
    assert over(log, allowance=2) == ["p: 3 closures in the window that ends with n5's"]
    assert over(log, allowance=2, window_s=3.0) == []
    assert over(log, out_at_once=1) == ["p: 2 nodes out at once", "p: 2 nodes out at once"]
    assert over(Log().close("n1").close("n2")) == ["n2 was taken out beside n1 of g0"]


@pytest.mark.parametrize("act", sorted(judge.ACTS))
def test_an_act_needs_a_mark_of_a_repair_and_no_job(act):
    assert judge.undrained(Log().close().add(act).rows) == []
    for gone in sorted(judge.JOB_GONE):
        idle = Log().add("job_started", job="j1").close().add(gone)
        assert judge.undrained(idle.add(act).rows) == []
    assert judge.undrained(Log().add("job_started", job="j1").close().add(act).rows)
    assert judge.undrained(Log().add(act).rows)
    assert judge.undrained(Log().close(mark="sickbay:withheld.n1").add(act).rows)
    assert judge.undrained(Log().close().open().add(act).rows)


def test_acts_beyond_what_was_asked_are_doubled(tmp_path):
    journal = tmp_path / "nodes" / "n1" / "journal.db"
    journal.parent.mkdir(parents=True)
    with sqlite3.connect(journal) as db:
        db.execute("create table operations (operation_id text, outcome text)")
        db.executemany(
            "insert into operations values (?, ?)",
            [
                ("n1.a/003-reset", "succeeded"),
                ("n1.a/005-reset", "permanent"),
                ("n1.a/007-reboot", None),
            ],
        )
    with sqlite3.connect(tmp_path / "sickbay.db") as db:
        db.execute("create table operations (node text, treatment text)")
        db.executemany("insert into operations values (?, ?)", [("n1", "reflash")])
    asked = judge.asked_of(tmp_path)
    log = Log().add("gpu_reset").add("reboot").add("flash_started").add("power_off")
    assert judge.doubled(log.rows, asked) == []
    log.add("gpu_reset").add("power_off").add("reboot", "n2")
    assert judge.doubled(log.rows, asked) == [
        "n1: 2 times gpu_reset, asked for 1 times",
        "n1: 2 times power_off, asked for 1 times",
        "n2: 1 times reboot, asked for 0 times",
    ]


def test_a_line_that_is_being_written_is_left_out(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"kind": "reboot"}\n{"kind": "reb', encoding="utf-8")
    assert judge.read_log(tmp_path) == [{"kind": "reboot"}]
