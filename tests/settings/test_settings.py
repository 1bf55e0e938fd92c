"""Settings: one file, one environment, one clear line for whatever is wrong in them."""

from pathlib import Path

import pytest

from sickbay.contracts.steps import Action
from sickbay.errors import UsageError
from sickbay.settings import Settings, load_settings, save_resolved


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sickbay.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_unknown_key_is_refused_by_its_name(tmp_path):
    path = write(tmp_path, "[budget]\nfractoin = 0.1\n")
    with pytest.raises(UsageError) as error:
        load_settings(path, environ={})
    assert str(path) in error.value.message
    assert error.value.field == "budget.fractoin"
    assert error.value.remedy


def test_a_wrong_type_names_the_field_and_the_value(tmp_path):
    path = write(tmp_path, "[policy]\nproof_passes = 0\n")
    with pytest.raises(UsageError) as error:
        load_settings(path, environ={})
    assert error.value.field == "policy.proof_passes"
    assert "0" in error.value.message


@pytest.mark.parametrize("text", ["time_scale = ", "[pools", "\x00"])
def test_a_file_that_is_no_toml_is_one_clear_line(tmp_path, text):
    with pytest.raises(UsageError, match="cannot be parsed"):
        load_settings(write(tmp_path, text), environ={})


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere\.toml"):
        load_settings(tmp_path / "nowhere.toml", environ={})


def test_the_environment_replaces_keys_of_the_file(tmp_path):
    path = write(tmp_path, "time_scale = 2\n[temporal]\nport = 7000\n")
    settings = load_settings(path, environ={"SICKBAY_TEMPORAL__PORT": "7100"})
    assert settings.temporal.port == 7100
    assert settings.time_scale == 2


def test_default_mode_is_observe_unless_every_node_is_simulated(tmp_path):
    assert Settings().mode_of("any", Action.RESET) == "observe"
    simulated = load_settings(write(tmp_path, "[simulator]\nenabled = true\n"), environ={})
    assert simulated.mode_of("any", Action.RESET) == "act"


def test_an_action_may_have_a_mode_of_its_own(tmp_path):
    text = '[pools.a]\nmode = "act"\n[pools.a.actions]\nreboot = "approve"\n'
    settings = load_settings(write(tmp_path, text), environ={})
    assert settings.mode_of("a", Action.REBOOT) == "approve"
    assert settings.mode_of("a", Action.RESET) == "act"
    assert settings.mode_of("b", Action.RESET) == "observe"


def test_time_scale_divides_policy_and_leaves_machine_floors():
    settings = Settings(time_scale=720)
    policy = settings.repair_policy("a")
    assert policy.swap_reminder_s == 8 * 3600 / 720
    assert policy.hour_s == 5
    assert policy.heartbeat_timeout_s == 5
    assert settings.budget_policy("a").window_s == 5


def test_resolved_settings_are_read_back_as_they_were(tmp_path):
    settings = Settings(time_scale=3, state_dir=tmp_path)
    save_resolved(settings, tmp_path / "run.json")
    assert load_settings(tmp_path / "run.json", environ={}) == settings


def test_what_a_class_owes_is_read_and_a_misspelt_floor_is_refused(tmp_path):
    text = """
[classes.h200x8]
nccl_network = "IB"
nccl_launcher = ["mpirun", "--mca", "btl_tcp_if_include", "eth0"]

[classes.h200x8.floors]
nccl_pair_busbw_gbps = 345
"""
    owed = load_settings(write(tmp_path, text), environ={}).classes["h200x8"]
    assert owed.floors == {"nccl_pair_busbw_gbps": 345.0}
    assert owed.nccl_launcher[1:] == ("--mca", "btl_tcp_if_include", "eth0")
    for wrong in ("nccl_pair_bsbw_gbps = 345", "nccl_busbw_gbps = 0", "p2p_gbps = 'fast'"):
        path = write(tmp_path, f"[classes.h200x8.floors]\n{wrong}\n")
        with pytest.raises(UsageError) as error:
            load_settings(path, environ={})
        assert error.value.field.startswith("classes.h200x8.floors")


def test_the_demos_classes_are_those_of_its_fleet():
    demo = load_settings(Path(__file__).parents[2] / "sickbay" / "demo.toml", environ={})
    assert set(demo.classes) == {f"h200x{demo.simulator.gpus_per_node}"}
