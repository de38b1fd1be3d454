"""Mock state is global: each test gets it fresh and puts it back."""

import gc
import warnings

import pulumi
import pytest
from pulumi.runtime import settings as runtime_settings

with warnings.catch_warnings():
    # The SDK warns about its own names with any import of it.
    warnings.simplefilter("ignore", DeprecationWarning)
    from pulumi_gcp import compute, storage

    assert compute.InstanceTemplate and storage.Bucket  # the modules are lazy: this loads them


@pytest.fixture(autouse=True)
def pulumi_state():
    before = runtime_settings.SETTINGS
    config = dict(pulumi.runtime.config.CONFIG.get())
    yield
    gc.enable()  # the program turns it off
    runtime_settings.configure(before)
    pulumi.runtime.set_all_config(config)
