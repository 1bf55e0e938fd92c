import signal
import subprocess
import sys
import textwrap

import pytest

from sickbay.adapters.operation_journal import SqliteJournal
from sickbay.contracts.steps import Effect, Outcome

DONE = Effect(Outcome.SUCCEEDED, "reset")


def test_only_the_first_begin_is_fresh_and_the_first_boot_id_stays(tmp_path):
    journal = SqliteJournal(tmp_path / "journal.db")
    assert journal.lookup("op-1") is None
    assert journal.begin("op-1", boot_id="boot-1").fresh
    again = journal.begin("op-1", boot_id="boot-2")
    assert (again.fresh, again.boot_id, again.effect) == (False, "boot-1", None)


def test_a_finished_operation_answers_with_its_effect(tmp_path):
    journal = SqliteJournal(tmp_path / "journal.db")
    journal.begin("op-1", boot_id="boot-1")
    journal.finish("op-1", effect=DONE)
    known = SqliteJournal(tmp_path / "journal.db").begin("op-1", boot_id="boot-2")
    assert (known.fresh, known.effect) == (False, DONE)


def test_an_operation_that_never_began_cannot_end(tmp_path):
    with pytest.raises(LookupError):
        SqliteJournal(tmp_path / "journal.db").finish("op-1", effect=DONE)


@pytest.mark.parametrize("finished", [False, True])
def test_what_was_written_survives_a_killed_process(tmp_path, finished):
    path = tmp_path / "journal.db"
    program = textwrap.dedent(f"""
        import os, signal
        from pathlib import Path
        from sickbay.adapters.operation_journal import SqliteJournal
        from sickbay.contracts.steps import Effect, Outcome
        journal = SqliteJournal(Path({str(path)!r}))
        journal.begin("op-1", boot_id="boot-1")
        if {finished}:
            journal.finish("op-1", effect=Effect(Outcome.SUCCEEDED, "reset"))
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    killed = subprocess.run([sys.executable, "-c", program], timeout=30, check=False)
    assert killed.returncode == -signal.SIGKILL
    known = SqliteJournal(path).lookup("op-1")
    assert known is not None
    assert (known.boot_id, known.effect) == ("boot-1", DONE if finished else None)
