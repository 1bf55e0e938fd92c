"""Evidence is named by its digest, private, and never trusted unread."""

import asyncio
import os
import stat

import pytest
from sqlalchemy import select

from sickbay.errors import EvidenceMissing
from sickbay.store import tables as t
from sickbay.store.evidence import EvidenceFiles
from tests.store.conftest import T0

RAW = b'{"DCGM Diagnostic": "Fail"}'


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_bytes_come_back_and_the_same_bytes_are_one_file(tmp_path):
    files = EvidenceFiles(tmp_path / "evidence")
    refs = await asyncio.gather(*(files.put(RAW, kind="dcgm_diag") for _ in range(4)))
    assert len(set(refs)) == 1
    assert (refs[0].size_bytes, refs[0].kind) == (len(RAW), "dcgm_diag")
    assert await files.get(refs[0].sha256) == RAW
    assert len([p for p in tmp_path.rglob("*") if p.is_file()]) == 1


async def test_files_are_0600_and_folders_0700_whatever_the_umask(tmp_path):
    before = os.umask(0o000)
    try:
        ref = await EvidenceFiles(tmp_path / "deep" / "evidence").put(RAW, kind="x")
    finally:
        os.umask(before)
    home = tmp_path / "deep" / "evidence"
    file = home / ref.sha256[:2] / ref.sha256
    assert (mode(home), mode(file.parent), mode(file)) == (0o700, 0o700, 0o600)


async def test_a_folder_somebody_made_for_us_becomes_private(tmp_path):
    home = tmp_path / "evidence"
    home.mkdir(mode=0o755)
    await EvidenceFiles(home).put(RAW, kind="x")
    assert mode(home) == 0o700


async def test_changed_bytes_are_never_given_out_and_a_new_put_mends_them(tmp_path):
    files = EvidenceFiles(tmp_path)
    ref = await files.put(RAW, kind="x")
    file = tmp_path / ref.sha256[:2] / ref.sha256
    file.write_bytes(RAW.replace(b"Fail", b"Pass"))
    with pytest.raises(EvidenceMissing, match="was changed"):
        await files.get(ref.sha256)
    await files.put(RAW, kind="x")
    assert await files.get(ref.sha256) == RAW


@pytest.mark.parametrize("bad", ["", "ab" * 32, "../../etc/passwd", "AB" * 32])
async def test_what_is_not_stored_is_missing(tmp_path, bad):
    with pytest.raises(EvidenceMissing):
        await EvidenceFiles(tmp_path).get(bad)


async def test_stored_facts_are_listed_by_digest_in_the_store(tmp_path, store, records):
    files = EvidenceFiles(tmp_path, index=lambda ref: records.index_evidence(ref, at=T0))
    refs = [await files.put(data, kind="x") for data in (RAW, RAW, b"other")]
    async with store.read() as db:
        rows = (await db.execute(select(t.evidence))).all()
    assert {(r.sha256, r.size_bytes) for r in rows} == {(r.sha256, r.size_bytes) for r in refs}
