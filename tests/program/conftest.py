"""The mocks' state, as for the components."""

from tests.components.conftest import pulumi_state as pulumi_state
