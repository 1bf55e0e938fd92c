"""Firmware of the simulated hardware: which components there are, their versions, their images.

An image says what it is for and carries the digest of its own contents, as a vendor's package does;
a controller that finds another digest refuses it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sickbay.simulator.hardware import VBIOS, Gpu, Node

GPU_FAMILY = "HGX_FW_GPU_SXM"
# What a node of the one class of this fleet is delivered with, by family.
WANTED: Mapping[str, str] = {
    "HostBMC": "24.10.17",
    "HostBIOS": "1.05.03",
    "HGX_FW_BMC": "22.10.1",
    "HGX_FW_FPGA": "3.0A",
    GPU_FAMILY: VBIOS,
}
# A version with which a GPU trains half of its PCIe lanes and its NVLinks are noisy.
WEDGING = "96.00.74.00.1F"
FOLDER = "firmware"
INDEX = "index.json"
_MAGIC = b"SICKBAY-FIRMWARE-1\n"
_PAYLOAD = 4096


class BadImage(ValueError):
    """These bytes are no firmware image, or not the one its own header describes."""


@dataclass(frozen=True)
class Image:
    """What an image is for."""

    family: str
    version: str


def components(node: Node) -> dict[str, Gpu | None]:
    """The components of a node that have firmware, with the GPU that one belongs to."""
    found: dict[str, Gpu | None] = {f"{f}_0": None for f in WANTED if f != GPU_FAMILY}
    for gpu in node.gpus:
        found[component_of(gpu)] = gpu
    return found


def component_of(gpu: Gpu) -> str:
    """The GPU's component; the controller counts from one."""
    return f"{GPU_FAMILY}_{int(gpu.slot.removeprefix('gpu')) + 1}"


def family_of(component: str) -> str:
    """What the images of a component are made for."""
    return component.rpartition("_")[0]


def version_of(node: Node, *, component: str) -> str | None:
    """The version that runs now; None when the component does not answer."""
    gpu = components(node)[component]
    if gpu is not None:
        return gpu.vbios if gpu.answers else None
    return node.firmware.get(component, WANTED[family_of(component)])


def build_image(family: str, *, version: str) -> bytes:
    """An image, the same bytes each time."""
    seed = hashlib.sha256(f"{family} {version}".encode()).digest()
    payload = (seed * (_PAYLOAD // len(seed)))[:_PAYLOAD]
    header = {
        "family": family,
        "version": version,
        "sha256": hashlib.sha256(payload).hexdigest(),
    }
    return _MAGIC + json.dumps(header, sort_keys=True).encode() + b"\n" + payload


def read_image(data: bytes) -> Image:
    """What an image is for. Raises `BadImage`."""
    if not data.startswith(_MAGIC):
        raise BadImage("this is no firmware image")
    head, _, payload = data.removeprefix(_MAGIC).partition(b"\n")
    try:
        header = json.loads(head)
        image = Image(str(header["family"]), str(header["version"]))
        wanted = str(header["sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise BadImage("the image's header cannot be read") from error
    found = hashlib.sha256(payload).hexdigest()
    if found != wanted:
        raise BadImage(f"the image's digest is {found[:12]}, its header says {wanted[:12]}")
    return image


def publish(directory: Path) -> list[dict[str, Any]]:
    """Write the images of this fleet and their index below a directory; the index."""
    folder = directory / FOLDER
    folder.mkdir(exist_ok=True)
    index = []
    for family, version in (*WANTED.items(), (GPU_FAMILY, WEDGING)):
        data = build_image(family, version=version)
        name = f"{family}-{version}.fwpkg"
        path = folder / name
        if not path.exists() or path.read_bytes() != data:
            path.write_bytes(data)
        index.append(
            {
                "component": f"{family}_*",
                "version": version,
                "wanted": version == WANTED[family],
                "file": str(path.absolute()),
                "name": name,
                "sha256": hashlib.sha256(data).hexdigest(),
            }
        )
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return index
