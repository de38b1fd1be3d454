"""The guard over a foundation, on a folder's store."""

import pytest

from outlast.bucket.store import open_store
from outlast.dynamic import foundation_guard
from outlast.dynamic.foundation_guard import FoundationGuardProvider, InUse
from outlast.spec import foundation

OWNER = "organization/outlast/base"


@pytest.fixture
def store(tmp_path, monkeypatch):
    made = open_store(str(tmp_path))
    monkeypatch.setattr(foundation_guard, "open_store", lambda url: made)
    return made


def test_a_foundation_without_users_goes(store):
    store.put(foundation.note("organization/outlast/base-2", "dev"), b"x")
    FoundationGuardProvider().delete("id", {"owner": OWNER, "bucket": "b"})


def test_one_in_use_stays_and_names_who_uses_it(store):
    for experiment in ("dev", "adult"):
        store.put(foundation.note(OWNER, experiment), b"x")
    with pytest.raises(InUse, match="experiments use it: adult, dev; destroy them"):
        FoundationGuardProvider().delete("id", {"owner": OWNER, "bucket": "b"})


def test_only_another_bucket_or_owner_is_another_guard():
    provider, olds = FoundationGuardProvider(), {"owner": OWNER, "bucket": "b"}
    assert not provider.diff("id", olds, olds).changes
    assert provider.diff("id", olds, {**olds, "bucket": "c"}).replaces == ["bucket"]
