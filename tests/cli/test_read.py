"""`sickbay read`: any verdict ends with 0, bad input with 2, and the document has its keys."""

import io
import json
import sys

import pytest

from sickbay.cli import read as command
from sickbay.cli.main import invoke

LOST = "[    9.1] NVRM: Xid (PCI:0000:3d:00): 79, pid=7, name=x, GPU has fallen off the bus.\n"
TABLE = "GPU 0: NVIDIA H100 (UUID: GPU-00000000-0000)\n"


@pytest.fixture
def file(tmp_path):
    def write(text, name="output"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def run(capsys, *args):
    code = invoke(["read", *args])
    out, err = capsys.readouterr()
    return code, out, err


def document(capsys, *args):
    code, out, _ = run(capsys, *args, "--json")
    assert code == 0
    return json.loads(out)


def test_the_document_of_a_reading_has_exactly_its_keys(file, capsys):
    found = document(capsys, "kernel-log", file(LOST))
    assert list(found) == ["tool", "verdict", "category", "findings", "measurements", "why"]
    assert found["findings"] == [
        {
            "part": "0000:3d:00",
            "reason": "xid_79",
            "severity": "critical",
            "kind": "hardware",
            "treatment": "reboot",
        }
    ]
    assert (found["tool"], found["verdict"], found["category"]) == ("kernel-log", "fail", "compute")


def test_a_measurement_has_exactly_its_keys(file, capsys):
    page = 'DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-1"} 1980\n'
    found = document(capsys, "auto", file(page))
    assert found["measurements"] == [
        {
            "name": "sm_clock_mhz",
            "part": "0",
            "peer": None,
            "size_bytes": None,
            "placement": None,
            "value": 1980.0,
            "unit": "MHz",
        }
    ]


@pytest.mark.parametrize(
    ("tool", "text", "verdict"),
    [
        ("kernel-log", LOST, "fail"),
        ("auto", "[    9.1] usb 1-1: new device\n", "pass"),
        ("auto", "nobody knows this\n", "inconclusive"),
        ("nvidia-smi", TABLE, "pass"),
        ("dcgmi-diag", "no such thing\n", "inconclusive"),
    ],
)
def test_any_verdict_ends_with_0(tool, text, verdict, file, capsys):
    assert document(capsys, tool, file(text))["verdict"] == verdict
    code, out, err = run(capsys, tool, file(text))
    assert (code, err) == (0, "")
    assert verdict in out


def test_the_exit_status_is_an_input(file, capsys):
    text = file("Terminating early due to previous errors.\n")
    assert document(capsys, "nvidia-smi", text)["verdict"] == "inconclusive"
    lost = document(capsys, "nvidia-smi", text, "--exit-code", "15")
    assert (lost["verdict"], lost["findings"][0]["reason"]) == ("fail", "gpu_lost")


def test_the_class_is_an_input(file, capsys):
    node_class = file("gpu_count = 8\n", "class.toml")
    found = document(capsys, "nvidia-smi", file(TABLE), "--expect", node_class)
    assert [f["reason"] for f in found["findings"]] == ["gpu_missing"]


def test_bytes_that_are_no_text_are_replaced(file, capsys):
    raw = b"[    9.0] caf\xe9 \xff\xfe\n" + LOST.encode()
    assert document(capsys, "auto", file(raw))["findings"][0]["reason"] == "xid_79"


def test_standard_input_is_a_file(monkeypatch, capsys):
    for text in (LOST, TABLE):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert document(capsys, "auto", "-")["tool"] in {"kernel-log", "nvidia-smi"}


def test_a_log_larger_than_any_limit_is_read_line_by_line(file, capsys, monkeypatch):
    monkeypatch.setattr(command, "LARGEST_OUTPUT_BYTES", 1_000)
    noise = "[    9.0] usb 1-1: " + "x" * 80 + "\n"
    endless = "[    9.0] usb 1-1: " + "y" * 200_000 + LOST
    found = document(capsys, "auto", file(noise * 9_000 + endless + noise + LOST))
    assert [f["reason"] for f in found["findings"]] == ["xid_79"]
    # What stands in the middle of a line, however long, is no line.
    assert document(capsys, "auto", file(noise * 9 + endless))["verdict"] == "pass"


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("missing", "cannot be read"),
        ("directory", "cannot be read"),
        ("empty", "is empty"),
        ("blank", "is empty"),
        ("large", "MiB"),
        ("unknown tool", "kernel-log"),
        ("class missing", "cannot be read"),
        ("class wrong", "gpu_count"),
        ("class is no toml", "not TOML"),
        ("exit code is no number", "exit"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(case, says, as_json, file, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "LARGEST_OUTPUT_BYTES", 1_000)
    good = file(TABLE)
    args = {
        "missing": ["nvidia-smi", str(tmp_path / "nothing")],
        "directory": ["auto", str(tmp_path)],
        "empty": ["auto", file("", "empty")],
        "blank": ["kernel-log", file(" \n\n", "blank")],
        "large": ["nvidia-smi", file(TABLE * 100, "large")],
        "unknown tool": ["nvidia-smy", good],
        "class missing": ["nvidia-smi", good, "--expect", str(tmp_path / "nothing.toml")],
        "class wrong": ["nvidia-smi", good, "--expect", file("gpu_count = 'x'", "w.toml")],
        "class is no toml": ["nvidia-smi", good, "--expect", file("<xml>", "x.toml")],
        "exit code is no number": ["nvidia-smi", good, "--exit-code", "many"],
    }[case]
    code, out, err = run(capsys, *args, *(["--json"] if as_json else []))
    assert code == 2
    shown = out if as_json else err
    assert len(shown.strip().splitlines()) == 1
    assert says in shown
    if as_json:
        error = json.loads(out)["error"]
        assert set(error) == {"code", "message", "field", "remedy"}
        assert error["remedy"]
    else:
        assert out == ""
