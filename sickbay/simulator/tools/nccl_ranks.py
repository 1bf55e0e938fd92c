"""What a collective over GPUs of one or more machines measures, and how nccl-tests prints it.

Bandwidth follows from physical state alone: inside a machine the slowest GPU and its links bound
every rank, between machines the slowest rail does.
"""

import os
import time

from sim_link import Dead, Machine, Refusal, say

# NVLink SHARP moves more than the wire: 475 GB/s of bus bandwidth over 374 GB/s of links.
SWITCH_GAIN = 1.27
LATENCY_US = 38.0
BOOST_MHZ = 1980.0
MINUTES = 1.0
MOST_SIZES = 64
# Wide numbers lose their decimals, as in the real table.
WIDE = 10_000
SUFFIX = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
CUDA_FAILED, NCCL_FAILED = 2, 3


class Failed(Exception):
    """A rank gave up; `code` is what its process ends with."""

    def __init__(self, host: str, what: str, code: int) -> None:
        super().__init__(what)
        self.host = host
        self.code = code


class Options:
    """The command line of a collective test."""

    def __init__(self) -> None:
        self.least = self.most = 32 << 20
        self.factor = 2
        self.step = 0
        self.gpus = 1
        self.threads = 1
        self.check = True
        self.iterations = 20
        self.warmup = 5

    def sizes(self) -> list:
        """The sizes in bytes, smallest first; bounded, whatever the step."""
        found, size = [], self.least
        while size <= self.most and len(found) < MOST_SIZES:
            found.append(size)
            size = size + self.step if self.step else size * self.factor
        return found


def parse(argv: list) -> Options | None:
    """Options of a command line; None for one that is not known or makes no sense."""
    names = {"-b": "least", "--minbytes": "least", "-e": "most", "--maxbytes": "most"}
    names.update({"-f": "factor", "--stepfactor": "factor", "-i": "step", "--stepbytes": "step"})
    names.update({"-g": "gpus", "--ngpus": "gpus", "-t": "threads", "--nthreads": "threads"})
    names.update({"-c": "check", "--check": "check", "-n": "iterations", "--iters": "iterations"})
    names.update({"-w": "warmup", "--warmup_iters": "warmup"})
    found, words = Options(), list(argv)
    while words:
        name, equals, value = words.pop(0).partition("=")
        if name not in names or not (equals or words):
            return None
        try:
            setattr(found, names[name], _number(value if equals else words.pop(0)))
        except ValueError:
            return None
    found.check = bool(found.check)
    if found.least <= 0 or found.gpus <= 0 or found.threads <= 0 or found.iterations <= 0:
        return None
    return found if found.step > 0 or found.factor > 1 else None


def _number(text: str) -> int:
    unit = SUFFIX.get(text[-1:].upper())
    return int(float(text[:-1]) * unit) if unit else int(text)


def collect(hosts: list) -> list:
    """Rows of ranks, one per GPU: `hosts` are (machine, GPUs wanted). Raises Failed, Dead."""
    ranks = []
    for machine, wanted in hosts:
        state = machine.read()
        seen = sorted(state["gpus"], key=lambda gpu: gpu["index"])
        if any(not gpu["answers"] or gpu["hung"] for gpu in seen):
            raise Failed(machine.node, "Test CUDA failure common.cu:1062 'unknown error'", 2)
        if len(seen) < wanted:
            text = "Test CUDA failure common.cu:1070 'invalid device ordinal'"
            raise Failed(machine.node, text, CUDA_FAILED)
        chosen = seen[:wanted]
        if any(gpu["pid"] is not None for gpu in chosen):
            text = "all CUDA-capable devices are busy or unavailable"
            raise Failed(machine.node, f"Test CUDA failure common.cu:1062 '{text}'", CUDA_FAILED)
        ranks.extend((machine, gpu) for gpu in chosen)
    return ranks


def bus_gbps(ranks: list, *, hosts: list) -> float:
    """Load all ranks together; the bus bandwidth of a large message, 0 for one rank alone."""
    what = "fabric" if len(hosts) > 1 else "nvlink"
    inside, rails, sleep_s = [], [], 0.0
    for machine, _ in hosts:
        indices = [gpu["index"] for owner, gpu in ranks if owner is machine]
        answer = machine.ask("exercise", what=what, minutes=MINUTES, indices=indices)
        sleep_s = max(sleep_s, answer["sleep_s"])
        measured = answer["gpus"]
        if len(measured) < len(indices):
            text = "Test NCCL failure common.cu:1057 'unhandled system error'"
            raise Failed(machine.node, text, NCCL_FAILED)
        clock = min(gpu["sm_clock_mhz"] for gpu in measured) / BOOST_MHZ
        links = min(gpu["nvlink_gbps"] for gpu in measured)
        inside.append(SWITCH_GAIN * links * (0.5 + 0.5 * clock))
        rails.append(len(measured) * min(gpu["rail_gbps"] for gpu in measured))
    time.sleep(sleep_s)
    if len(ranks) == 1:
        return 0.0
    return min(inside) if len(hosts) == 1 else min(*inside, *rails)


def header(options: Options, ranks: list) -> None:
    """What is printed before anything is measured."""
    step = f"{options.step}(bytes)" if options.step else f"{options.factor}(factor)"
    say("# Collective test starting: all_reduce_perf")
    say(
        f"# nThread {options.threads} nGpus {options.gpus} minBytes {options.least}"
        f" maxBytes {options.most} step: {step} warmup iters: {options.warmup}"
        f" iters: {options.iterations} agg iters: 1 validation: {int(options.check)} graph: 0"
    )
    say("#\n# Using devices")
    for rank, (machine, gpu) in enumerate(ranks):
        bus = gpu["bus_id"][4:].rpartition(".")[0].lower()
        say(
            f"#  Rank {rank:2d} Group  0 Pid {40_000 + rank:6d} on {machine.node}"
            f" device {gpu['index']:2d} [{bus}] NVIDIA H200"
        )


def rows(options: Options, *, ranks: int, gbps: float) -> None:
    """The table and its footer."""
    say(
        "#\n#                                                              out-of-place"
        "                       in-place          \n"
        "#       size         count      type   redop    root     time   algbw   busbw #wrong"
        "     time   algbw   busbw #wrong\n"
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)       "
        "     (us)  (GB/s)  (GB/s)       "
    )
    seen = []
    for size in options.sizes():
        cells = []
        for gain in (1.0, 0.995):
            us, alg, bus = _cell(size, ranks=ranks, gbps=gbps * gain)
            seen.append(bus)
            wrong = "0" if options.check and ranks > 1 else "N/A"
            cells.append(f"{_short(us):>8} {_short(alg):>7} {_short(bus):>7} {wrong:>6}")
        say(f"{size:12d}  {size // 4:12d}     float     sum      -1 {' '.join(cells)}")
    say("# Out of bounds values : 0 OK")
    say(f"# Avg bus bandwidth    : {sum(seen) / max(1, len(seen)):g} \n#")
    say("# Collective test concluded: all_reduce_perf\n#")


def _cell(size: int, *, ranks: int, gbps: float) -> tuple:
    """Microseconds, algorithm and bus bandwidth of one size."""
    if ranks == 1:
        us = max(0.5, size / 2.0e6)
        return us, size / us / 1e3, 0.0
    share = 2.0 * (ranks - 1) / ranks
    us = LATENCY_US + size * share / gbps / 1e3
    alg = size / us / 1e3
    return us, alg, alg * share


def _short(value: float) -> str:
    return f"{value:.2f}" if value < WIDE else f"{value:.0f}"


def info(hosts: list, ranks: list) -> None:
    """What NCCL says of its network at level INFO."""
    if os.environ.get("NCCL_DEBUG", "").upper() != "INFO":
        return
    for machine, _ in hosts:
        ports = sum(owner is machine for owner, _ in ranks)
        names = " ".join(f"[{i}]mlx5_{i}:1/IB" for i in range(ports))
        port = f"NET/IB : Using {names} [RO]; OOB eth0:10.0.0.1<0>"
        for text in (port, "Using network IB"):
            say(f"{machine.node}:40000:40100 [0] NCCL INFO {text}")


def run(options: Options, hosts: list) -> int:
    """Run one collective over hosts of (machine, GPUs); the exit status."""
    try:
        ranks = collect(hosts)
        header(options, ranks)
        if len(hosts) > 1:
            info(hosts, ranks)
        gbps = bus_gbps(ranks, hosts=hosts)
    except Failed as no:
        say(f"{no.host}: {no}")
        say(f" .. {no.host} pid 40000: Test failure common.cu:1206")
        return no.code
    except (Dead, Refusal):
        return NCCL_FAILED
    rows(options, ranks=len(ranks), gbps=gbps)
    return 0


def machine_of(host: str) -> Machine:
    """The machine of a host. Raises Dead."""
    machine = Machine(host)
    machine.read()
    return machine
