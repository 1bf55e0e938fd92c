"""gpu-burn: which GPUs computed rightly under load, from its closing list and its counts of errors.

Early rows of nought are the warm-up. A GPU with a wrong result is faulty whatever the list says; a
count overflows to a negative one. What stands beside `DIED!` is no count, and then the list says
FAULTY of a process, not of a GPU. It says OK of a GPU that did no work.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from sickbay.domain.node import Category, Severity
from sickbay.domain.reading import Finding, FindingKind, Measurement, Reading
from sickbay.readers import cuda_errors
from sickbay.readers.conclusion import conclude, contradiction, first_line, tool_finding

TOOL = "gpu-burn"
_PROGRESS = re.compile(r"^\s*\d{1,3}(?:\.\d+)?%\s+proc'd: ")
_RATE = re.compile(r"-?\d{1,15} \((\d{1,12}(?:\.\d+)?) Gflop/s\)")
_ERRORS = re.compile(r"errors: (.*?)(?:\s{2,}temps:|$)")
_COUNT = re.compile(r"(-?\d{1,15})(\s*\(DIED!\))?")
_TEMPS = re.compile(r"temps: (.*)$")
_TESTED = re.compile(r"^Tested (\d{1,5}) GPUs?:")
_RESULT = re.compile(r"^\s*GPU (\d{1,5}): (OK|FAULTY)\s*$")
_FAILED = re.compile(
    r"Couldn't init a GPU test|No clients are alive|No CUDA devices|Killing processes with SIGKILL"
    r"|Error in \"?\w+|Couldn't (?:open|find|load)"
)
_SIGN = re.compile(
    r"proc'd: .*Gflop/s|^Tested \d+ GPUs?:|^Burning for \d+|Couldn't init a GPU test", re.MULTILINE
)
_DASH = " - "


@dataclass
class _Burn:
    gflops: dict[int, float] = field(default_factory=dict)
    errors: dict[int, int] = field(default_factory=dict)
    temps: dict[int, float] = field(default_factory=dict)
    died: set[int] = field(default_factory=set)
    overflowed: set[int] = field(default_factory=set)
    results: dict[int, str] = field(default_factory=dict)
    tested: int | None = None
    failures: list[str] = field(default_factory=list)


def recognises(text: str) -> bool:
    """Whether a text looks like an output of gpu-burn."""
    return bool(_SIGN.search(text))


def read(text: str, *, exit_code: int | None, gpus: int | None = None) -> Reading:
    """What one burn means.

    Args:
        text: what was printed; progress lines may be parted by carriage returns.
        exit_code: the exit status, None when it is not known.
        gpus: GPUs the node has, None when nobody says.
    """
    burn = _burn(text)
    findings = [*_wrong(burn), *_broken(burn)]
    whole = burn.tested is not None and len(burn.results) == burn.tested and burn.tested > 0
    if not burn.gflops and burn.tested is None:
        findings.append(tool_finding("did_not_run", first_line(text)))
    elif not whole:
        findings.append(tool_finding("incomplete", "the list of tested GPUs is not there or cut"))
    if whole and gpus is not None and burn.tested != gpus:
        detail = f"{burn.tested} GPUs were tested, {gpus} are expected"
        findings.append(tool_finding("gpu_count_mismatch", detail))
    idle = [gpu for gpu in burn.results if not burn.gflops.get(gpu)] if whole else []
    findings += [tool_finding("not_measured", "it did no work", str(gpu)) for gpu in idle]
    findings += contradiction(exit_code, findings)
    return conclude(
        TOOL,
        text,
        findings,
        passed=f"{len(burn.results)} GPUs computed rightly" if whole else None,
        measurements=list(_measurements(burn)),
    )


def _burn(text: str) -> _Burn:
    burn = _Burn()
    for line in re.split(r"[\r\n]+", text):
        tested, result = _TESTED.match(line), _RESULT.match(line)
        if _PROGRESS.match(line):
            _take_progress(burn, line)
        elif tested:
            burn.tested, burn.results = int(tested[1]), {}
        elif result and burn.tested is not None:
            burn.results[int(result[1])] = result[2]
        elif _FAILED.search(line) and line.strip() not in burn.failures:
            burn.failures.append(line.strip()[:300])
    return burn


def _take_progress(burn: _Burn, line: str) -> None:
    for gpu, match in enumerate(_RATE.finditer(line)):
        if float(match[1]) > 0 or gpu not in burn.gflops:
            burn.gflops[gpu] = float(match[1])
    errors, temps = _ERRORS.search(line), _TEMPS.search(line)
    for gpu, count in enumerate(_COUNT.finditer(errors[1]) if errors else []):
        if count[2]:
            burn.died.add(gpu)
        elif int(count[1]) < 0:
            burn.overflowed.add(gpu)
        else:
            burn.errors[gpu] = max(burn.errors.get(gpu, 0), int(count[1]))
    for gpu, said in enumerate(temps[1].split(_DASH) if temps else []):
        degrees = re.match(r"\s*(\d{1,4}) C", said)
        if degrees:
            burn.temps[gpu] = max(burn.temps.get(gpu, 0.0), float(degrees[1]))


def _wrong(burn: _Burn) -> Iterator[Finding]:
    counted = {gpu for gpu, count in burn.errors.items() if count > 0} | burn.overflowed
    listed = {gpu for gpu, word in burn.results.items() if word == "FAULTY"} - burn.died
    for gpu in sorted(counted | listed):
        count = "very many" if gpu in burn.overflowed else burn.errors.get(gpu, 0)
        yield Finding(
            str(gpu),
            "compute_errors" if gpu in counted else "gpu_faulty",
            Severity.CRITICAL,
            FindingKind.HARDWARE,
            category=Category.COMPUTE,
            detail=f"{count} wrong results, listed as {burn.results.get(gpu, 'not yet')}",
        )


def _broken(burn: _Burn) -> Iterator[Finding]:
    for gpu in sorted(burn.died):
        yield tool_finding("gpu_process_died", "its process ended in the burn", str(gpu))
    for sentence in burn.failures:
        told = re.search(r"cuda|error in", sentence, re.IGNORECASE)
        yield cuda_errors.of_sentence(sentence) if told else tool_finding("tool_error", sentence)


def _measurements(burn: _Burn) -> Iterator[Measurement]:
    for gpu, rate in burn.gflops.items():
        yield Measurement("gflops", str(gpu), rate, "Gflop/s")
    for gpu, count in burn.errors.items():
        if gpu in burn.overflowed:
            continue
        yield Measurement("errors", str(gpu), float(count), "results")
    for gpu, degrees in burn.temps.items():
        yield Measurement("temp_c", str(gpu), degrees, "C")
