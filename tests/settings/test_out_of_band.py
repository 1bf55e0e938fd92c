"""Settings of acts out of band: secrets by reference, an allow-list that makes sense."""

import json
from pathlib import Path

import pytest

from sickbay.domain.node import Treatment
from sickbay.domain.radius import Load
from sickbay.errors import UsageError
from sickbay.settings import load_settings, save_resolved

DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
IMAGE = f'component = "GPU_*"\nversion = "2"\npath = "fw.bin"\nsha256 = "{DIGEST}"\n'


def load(tmp_path: Path, text: str, **environ: str):
    path = tmp_path / "sickbay.toml"
    path.write_text(text, encoding="utf-8")
    return load_settings(path, environ=environ)


WRONG = [
    ('[bmc]\nurl = "bmc.example"\n', "bmc", "http"),
    ('[bmc]\nurl = "https://ops:hunter2@{node}"\n', "bmc", "password_file"),
    ('[bmc]\nurl = "https://one"\nsystem = "1"\n', "bmc", "{node}"),
    (
        '[bmc]\nurl = "https://{node}"\npassword_file = "f"\npassword_env = "V"\n',
        "bmc",
        "not both",
    ),
    ('[bmc]\nurl = "https://{node}"\npassword = "hunter2"\n', "bmc.password", "unknown key"),
    (f'[[firmware.images]]\n{IMAGE}uri = "https://x/fw"\n', "firmware.images.0", "one of the two"),
    (
        f"[[firmware.images]]\n{IMAGE.replace(DIGEST, '12')}",
        "firmware.images.0",
        "64 hexadecimal digits",
    ),
    (
        "[[firmware.images]]\n" + IMAGE.replace('path = "fw.bin"', 'uri = "nfs://x/fw"'),
        "firmware.images.0",
        "digest cannot be checked",
    ),
    ("[limits]\npower_cycles_per_rack = -1\n", "limits.power_cycles_per_rack", "greater than"),
]


@pytest.mark.parametrize(("text", "field", "says"), WRONG, ids=[f for _, f, _ in WRONG])
def test_what_makes_no_sense_is_one_line_that_names_the_field_and_no_secret(
    tmp_path, text, field, says
):
    with pytest.raises(UsageError) as raised:
        load(tmp_path, text)
    assert raised.value.field == field
    assert says in raised.value.message
    assert "hunter2" not in raised.value.message


def test_the_password_is_read_where_it_is_and_never_saved(tmp_path, monkeypatch):
    secret = tmp_path / "secret"
    secret.write_text("hunter2\n")
    text = f'[bmc]\nurl = "https://{{node}}"\npassword_file = "{secret}"\n'
    settings = load(tmp_path, text)
    read = settings.bmc.password()
    assert read() == "hunter2"
    secret.write_text("rotated")
    assert read() == "rotated"
    save_resolved(settings, tmp_path / "run.json")
    assert "rotated" not in (tmp_path / "run.json").read_text()
    assert load_settings(tmp_path / "run.json", environ={}) == settings
    monkeypatch.setenv("THE_PASSWORD", "hunter3")
    by_name = load(tmp_path, '[bmc]\nurl = "https://{node}"\npassword_env = "THE_PASSWORD"\n')
    assert by_name.bmc.password()() == "hunter3"
    assert "hunter3" not in repr(by_name)
    monkeypatch.delenv("THE_PASSWORD")
    with pytest.raises(UsageError, match="THE_PASSWORD"):
        by_name.bmc.password()()


def test_treatments_without_a_controller_or_an_image_are_not_available(tmp_path):
    every = "[policy]\navailable = " + json.dumps([str(t) for t in Treatment]) + "\n"
    out_of_band = {Treatment.POWER_CYCLE, Treatment.REFLASH}

    def available(text):
        return set(load(tmp_path, every + text).repair_policy("p").available) & out_of_band

    assert available("") == set()
    bmc = '[bmc]\nurl = "https://{node}"\n'
    assert available(bmc) == {Treatment.POWER_CYCLE}
    assert available(f"{bmc}[[firmware.images]]\n{IMAGE}") == out_of_band
    assert available("[simulator]\nenabled = true\n") == out_of_band


def test_durations_follow_the_time_scale_down_to_what_a_machine_needs(tmp_path):
    bmc = load(tmp_path, "[bmc]\noff_s = 60\nback_s = 600\n").bmc
    assert (bmc.times(1.0).off_s, bmc.times(1.0).back_s) == (60, 600)
    fast = bmc.times(1000.0)
    assert (fast.off_s, fast.back_s) == (0.06, 20.0)


def test_a_limit_of_zero_is_no_limit(tmp_path):
    text = "[limits]\nresets_per_rack = 1\nresets_per_power_unit = 0\n"
    limits = load(tmp_path, text, SICKBAY_LIMITS__POWER_CYCLES_PER_RACK="7").limits.limits()
    assert (limits.per_rack[Load.RESET], limits.per_rack[Load.POWER_CYCLE]) == (1, 7)
    assert Load.STRESS not in limits.per_rack
    assert Load.RESET not in limits.per_power_unit
