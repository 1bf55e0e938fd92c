"""The labels that launchers, schedulers and log collectors put before every line."""

import re

_LABELS = re.compile(
    r"^(?:\[[^\]\n]{0,80}\d,\d+\]<std(?:out|err)>:\s?|\d{4}-\d\d-\d\dT\S{8,20}\s"
    r"|\s?\d{1,5}:\s(?=\s*[#\d]))"
)


def unlabelled(text: str) -> list[str]:
    """The lines of a text without the label of mpirun, srun or a log's time before each."""
    return [_LABELS.sub("", line) for line in text.splitlines()]
