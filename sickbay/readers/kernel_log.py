"""Kernel log text: what it says of the GPUs and of the rest of the node, and whose fault each is.

Read in one pass with bounded memory, so that a log of any size can be read. Silence passes only
when there were lines to read.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator

from sickbay.domain.reading import Finding, Reading
from sickbay.readers.conclusion import conclude_digested, tool_finding
from sickbay.readers.kernel_gpu import DriverLog
from sickbay.readers.kernel_host import HostLog
from sickbay.readers.kernel_lines import KERNEL, lines, looks_like_one
from sickbay.readers.kernel_links import LinkLog

TOOL = "kernel-log"

_BARE = re.compile(
    r"^(?:kernel: )?(?:NVRM: |(?:NVRM: )?Xid \(|nvidia-nvswitch\d+: S?Xid|pcieport [0-9a-f]{4}:"
    r"|mlx5_core [0-9a-f]{4}:|blk_update_request: |EDAC MC\d|mce: \[Hardware)",
)
# Without any of these words a line says nothing that is read.
# Without any of these words a line says nothing that is read. Each begins with a plain letter, so
# that the search skips over the rest fast.
_HINT = re.compile(
    r"NVRM|Xid|NVSwitch|PCIe Bus|AER:|DPC:|mlx5_core|Link |link |carrier|I/O|nvme|md/raid"
    r"|Hardware Error|EDAC|achine check|achine Check|oom|ut of memory|callbacks suppressed|-fs|XFS"
    r"|BTRFS|F2FS|Medium Error| error",
)
_RECOGNISED_LINES = 40


def read(text: str, *, exit_code: int | None) -> Reading:
    """What kernel log text means: dmesg, journal, syslog or /dev/kmsg form.

    Args:
        text: the log.
        exit_code: the exit status of what printed it, None when it is not known.
    """
    return read_lines(_split(text), exit_code=exit_code)


def read_lines(raw: Iterable[str], *, exit_code: int | None) -> Reading:
    """As `read`, from lines with their ends, in constant memory."""
    driver, host, links = DriverLog(), HostLog(), LinkLog()
    digest = hashlib.sha256()
    count = 0

    def counted() -> Iterator[str]:
        nonlocal count
        for one in raw:
            digest.update(one.encode("utf-8", errors="replace"))
            count += not one.isspace()
            yield one

    for line in lines(counted(), wanted=_HINT.search):
        if line.program == KERNEL:
            driver.feed(line.message)
        host.feed(line)
        links.feed(line)
    return _concluded(driver, host, links, exit_code=exit_code, count=count, digest=digest)


def recognises(text: str) -> bool:
    """Whether a text looks like log lines in any of their forms."""
    head = [line for line in text.splitlines() if line.strip()][:_RECOGNISED_LINES]
    return any(looks_like_one(line) or _BARE.match(line) for line in head)


def _concluded(
    driver: DriverLog,
    host: HostLog,
    links: LinkLog,
    *,
    exit_code: int | None,
    count: int,
    digest: "hashlib._Hash",
) -> Reading:
    findings, remarks = driver.findings()
    lost = any(f.reason in {"gpu_lost", "xid_79"} for f in findings)
    more, more_remarks = host.findings(echo=lost)
    findings += [*more, *links.findings()]
    findings += _doubts(driver, exit_code)
    says = count > 0 and not host.driver_mismatch
    return conclude_digested(
        TOOL,
        digest.hexdigest(),
        findings,
        passed=f"no fault of the node in {count} lines" if says else None,
        remarks=[*remarks, *more_remarks],
    )


def _doubts(driver: DriverLog, exit_code: int | None) -> list[Finding]:
    unfinished = driver.unfinished()
    found = [unfinished] if unfinished else []
    if exit_code not in {0, None}:
        found.append(tool_finding("tool_error", f"exit status {exit_code}"))
    return found


def _split(text: str) -> Iterator[str]:
    """The lines of a text with their ends, one at a time."""
    start = 0
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        yield text[start:end]
        start = end
