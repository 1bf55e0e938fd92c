"""Scripted tools: small shell scripts that stand where the real tools would."""

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from sickbay.domain.node import Node, Part, PartKind


@pytest.fixture
def tools(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """`tools(dcgmi="...", ...)` writes the scripts and gives the environment they are found in."""

    def write(**scripts: str) -> dict[str, str]:
        home = tmp_path / "bin"
        home.mkdir(exist_ok=True)
        for name, body in scripts.items():
            tool = home / name.replace("_", "-")
            tool.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
            tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        return {"PATH": f"{home}{os.pathsep}/usr/bin{os.pathsep}/bin", "ROOM": str(tmp_path)}

    return write


@pytest.fixture
def node() -> Node:
    """A node with two GPUs."""
    parts = (
        Part("gpu0", PartKind.GPU, "GPU-a", "165", "0000:1a:00"),
        Part("gpu1", PartKind.GPU, "GPU-b", "166", "0000:3b:00"),
    )
    return Node("n001", "pool-a", "g01", "r01", "h200x8", parts)


@pytest.fixture
def state_xml() -> Callable[[Mapping[str, str]], str]:
    """`nvidia-smi -q -x` of GPUs given as bus id to UUID; nothing is wrong with any of them."""

    def build(gpus: Mapping[str, str]) -> str:
        listed = "".join(
            f'<gpu id="{bus}"><uuid>{uuid}</uuid><serial>s-{uuid}</serial>'
            "<gpu_recovery_action>None</gpu_recovery_action></gpu>"
            for bus, uuid in gpus.items()
        )
        return (
            f"<nvidia_smi_log><attached_gpus>{len(gpus)}</attached_gpus>{listed}</nvidia_smi_log>"
        )

    return build
