"""fio: errors of the medium, numbers with their units, and documents that are none."""

import json

import pytest

from sickbay.domain.node import Category
from sickbay.domain.reading import Verdict
from sickbay.readers import fio


def side(iops=0.0, bw=0, **more):
    return {"iops": iops, "bw": bw, "bw_bytes": bw * 1024 + 7} | more


def job(error=0, read=None, write=None, **more):
    return {
        "jobname": "j",
        "error": error,
        "read": read or side(),
        "write": write or side(),
        "trim": side(),
    } | more


def document(*jobs, file="/dev/nvme3n1", **more):
    body = {"fio version": "fio-3.36", "global options": {"filename": file}, "jobs": list(jobs)}
    return json.dumps(body | more, indent=1)


def read(text, *, exit_code=None, **asked):
    return fio.read(text, exit_code=exit_code, **asked)


def reasons(reading):
    return {(f.part, f.reason) for f in reading.findings}


def values(reading):
    return {m.name: (m.value, m.unit) for m in reading.measurements}


def test_numbers_have_their_units_and_jobs_are_added_up():
    reading = read(document(job(read=side(100.5, 400)), job(read=side(50.0, 200))))
    assert reading.verdict is Verdict.PASS
    assert values(reading) == {
        "read_iops": (150.5, "1/s"),
        "read_bytes_per_s": (600 * 1024 + 14, "B/s"),
    }


def test_an_old_version_says_kibibytes_only():
    old = {"iops": 9.0, "bw": 100}
    assert values(read(document(job(read=old))))["read_bytes_per_s"] == (102400, "B/s")


def test_the_slowest_job_gives_the_percentile_under_either_name():
    waits = [
        {"clat_ns": {"percentile": {"99.000000": 7}}},
        {"lat_ns": {"percentile": {"99.000000": 9}}},
    ]
    jobs = [job(read=side(1.0, 1, **w)) for w in waits]
    assert values(read(document(*jobs)))["read_latency_p99_ns"] == (9, "ns")


@pytest.mark.parametrize(
    ("number", "reason"), [(5, "eio"), (84, "data_corruption"), (61, "medium_error")]
)
def test_an_error_of_the_medium_fails_the_device(number, reason):
    reading = read(document(job(number, read=side(3.0, 9))), exit_code=1)
    assert (reading.verdict, reading.category) == (Verdict.FAIL, Category.STORAGE)
    assert ("nvme3n1", reason) in reasons(reading)


@pytest.mark.parametrize(
    ("number", "reason"),
    [(28, "no_space"), (13, "no_permission"), (2, "no_such_file"), (22, "tool_error")],
)
def test_any_other_error_accuses_no_device(number, reason):
    reading = read(document(job(number), file="/data/f"), exit_code=1)
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert (None, reason) in reasons(reading)


def test_a_sentence_is_enough_when_the_document_is_cut():
    text = (
        "fio: io_u error on file /dev/sdq: Input/output error: write offset=4096, buflen=4096\n"
        "fio: pid=7, err=5/file:io_u.c:1896, func=io_u error, error=Input/output error\n"
    )
    reading = read(text + document(job())[:60])
    assert reading.verdict is Verdict.FAIL
    assert reasons(reading) == {("sdq", "eio"), (None, "truncated")}


def test_a_full_disk_is_no_broken_disk():
    text = "fio: io_u error on file /data/f: No space left on device: write offset=1, buflen=4\n"
    assert read(text + document(job(28), file="/data/f")).verdict is Verdict.INCONCLUSIVE


def test_data_that_reads_back_wrong_is_corrupt():
    text = "verify: bad magic header 0, wanted acca at file /dev/nvme1n1 offset 8192, length 4096\n"
    assert ("nvme1n1", "data_corruption") in reasons(read(text + document(job(84))))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{\n  ...\n}\n", "invalid_json"),
        (document(job(read=side(1.0, 1)))[:-9], "truncated"),
        (document(job()), "not_measured"),
        (document({"jobname": "j", "read": side(1.0, 1)}), "incomplete"),
        ("fio-3.36\nStarting 1 process\n", "did_not_run"),
    ],
)
def test_what_is_no_whole_document_is_no_verdict(text, reason):
    reading = read(text)
    assert reading.verdict is Verdict.INCONCLUSIVE
    assert reason in {f.reason for f in reading.findings}


def test_floors_judge_and_their_absence_does_not():
    text = document(job(read=side(900.0, 40)))
    assert read(text, floors={"fio_read_iops": 500}).verdict is Verdict.PASS
    slow = read(text, floors={"fio_read_iops": 1000})
    assert (slow.verdict, slow.category) == (Verdict.FAIL, Category.PERFORMANCE)
    assert reasons(slow) == {("nvme3n1", "bandwidth_below_floor")}


def test_clients_are_read_without_their_sum():
    clients = [job(read=side(5.0, 1)), job(read=side(5.0, 1), jobname="All clients")]
    text = "hostname=a, be=0\n" + json.dumps({"fio version": "fio-3", "client_stats": clients})
    assert values(read(text))["read_iops"][0] == 5


def test_a_status_that_contradicts_the_document_is_told():
    reading = read(document(job(read=side(1.0, 1))), exit_code=1)
    assert reasons(reading) == {(None, "exit_code_contradicts_document")}


@pytest.mark.parametrize(
    "text",
    [
        "j: (groupid=0, jobs=1): err=84 (file:io_u.c:2102, func=io_u_sync_complete): pid=6\n",
        "3;fio-3.15;read;0;84;512;9;9\n",
        "md5: verify failed at file /mnt/x/f offset 2097152, length 4096\n",
    ],
)
def test_the_other_reports_tell_of_corruption_too(text):
    reading = read(text)
    assert (reading.verdict, reading.category) == (Verdict.FAIL, Category.STORAGE)
    clean = read(text.replace("84", "0")) if "84" in text else read("fio-3.1\n")
    assert clean.verdict is Verdict.INCONCLUSIVE
