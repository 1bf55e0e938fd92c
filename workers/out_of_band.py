"""Which controllers, images and limits stand behind the out-of-band activities."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from activities.out_of_band import Ledger, OutOfBandActivities, Outside, Rules
from sickbay.adapters.ipmi import IpmiAccess, IpmiPower, NoFirmware
from sickbay.adapters.redfish import Access, Connections, RedfishFirmware, RedfishPower
from sickbay.domain.firmware import FirmwareImage
from sickbay.errors import BmcPassword, UsageError
from sickbay.out_of_band_settings import BmcSettings
from sickbay.ports import Bmc, Firmware, Inventory, Safety, Scheduler
from sickbay.ports_out_of_band import Witness
from sickbay.secret_refs import tool_environment
from sickbay.settings import Settings
from sickbay.store.engine import Store
from sickbay.store.out_of_band import StoreLeases, StoreOperations, StoreRollouts
from workers.process import utc_now


@dataclass(frozen=True)
class Around:
    """What the activities share with the others of the control worker."""

    store: Store
    scheduler: Scheduler
    witness: Witness
    safety: Safety
    inventory: Inventory


def out_of_band_activities(
    settings: Settings, *, around: Around, simulated: Mapping[str, str], directory: Path
) -> tuple[OutOfBandActivities, ...]:
    """The activities, none when this installation has no management controllers.

    `simulated` is what the simulated fleet says of itself, empty over a real one; `directory` is
    where it lives.

    Raises:
        UsageError: the password or the certificate authority cannot be read.
    """
    bmc = settings.bmc if settings.bmc.url else _simulated(settings.bmc, simulated)
    if bmc is None:
        return ()
    power, firmware = _controllers(bmc)
    images = settings.firmware.allowed() or published(directory)
    store = around.store
    activities = OutOfBandActivities(
        Outside(
            bmc=power,
            firmware=firmware,
            scheduler=around.scheduler,
            witness=around.witness,
            safety=around.safety,
            inventory=around.inventory,
        ),
        ledger=Ledger(StoreOperations(store), StoreLeases(store), StoreRollouts(store)),
        rules=Rules(
            limits=settings.limits.limits(),
            images=images,
            times=bmc.times(settings.time_scale),
        ),
        clock=utc_now,
    )
    return (activities,)


def _controllers(bmc: BmcSettings) -> tuple[Bmc, Firmware]:
    """The controllers by the protocol that their address names."""
    access = _access(bmc)
    if not bmc.by_ipmi:
        connections = Connections(access)
        firmware = RedfishFirmware(connections, upload_timeout_s=bmc.upload_timeout_s)
        return RedfishPower(connections), firmware
    told = IpmiAccess(
        url=bmc.url,
        username=bmc.username,
        password=access.password,
        interface=bmc.ipmi_interface,
        timeout_s=bmc.timeout_s,
        at_once=bmc.at_once,
    )
    return IpmiPower(told, env=tool_environment()), NoFirmware()


def published(directory: Path) -> tuple[FirmwareImage, ...]:
    """The wanted images that the simulated fleet published; none over a real fleet."""
    try:
        rows = json.loads((directory / "firmware" / "index.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ()
    return tuple(
        FirmwareImage(
            component=str(row["component"]),
            version=str(row["version"]),
            node_class="*",
            source=str(row["file"]),
            sha256=str(row["sha256"]),
        )
        for row in rows
        if row.get("wanted")
    )


def _simulated(bmc: BmcSettings, told: Mapping[str, str]) -> BmcSettings | None:
    if not told.get("bmc_url"):
        return None
    return bmc.model_copy(
        update={
            "url": told["bmc_url"],
            "username": told.get("bmc_user", ""),
            "password_file": Path(told["bmc_password_file"]),
            "password_env": "",
            "ca_file": Path(told["bmc_ca_file"]) if told.get("bmc_ca_file") else None,
        }
    )


def _access(bmc: BmcSettings) -> Access:
    if bmc.ca_file is not None and not bmc.ca_file.is_file():
        raise UsageError(
            f"the certificate authority {bmc.ca_file} cannot be read",
            field="bmc.ca_file",
            remedy="name a PEM file",
        )
    read = bmc.password()
    read()  # a reference that leads nowhere is told at the start, not at the first act

    def password() -> str:
        try:
            return read()
        except UsageError as error:
            raise BmcPassword(error.message, field=error.field, remedy=error.remedy) from error

    return Access(
        url=bmc.url,
        system=bmc.system,
        username=bmc.username,
        password=password,
        verify=str(bmc.ca_file) if bmc.verify and bmc.ca_file else bmc.verify,
        timeout_s=bmc.timeout_s,
        at_once=bmc.at_once,
    )
