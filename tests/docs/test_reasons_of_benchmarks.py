"""The page of reasons has every reason in the tables of the readers of benchmarks and boards."""

import pytest

from sickbay.readers import cuda_errors, fio, ipmi_sel, nccl_answers, perftest

TABLES = {
    "CUDA": {r for _, r, _ in cuda_errors._HARDWARE} | {r for _, r in cuda_errors._TOOL},
    "NCCL": {reason for _, reason in nccl_answers._NCCL_WORDS},
    "perftest": {reason for _, reason in perftest._ERRORS},
    "fio": set(fio._MEDIUM.values()) | set(fio._TOOL.values()),
    "event log": {meaning.reason for meaning in ipmi_sel._MEANINGS},
}


@pytest.mark.parametrize("table", TABLES)
def test_every_reason_of_a_table_is_documented(table, documented_reason):
    assert [reason for reason in sorted(TABLES[table]) if not documented_reason(reason)] == []
