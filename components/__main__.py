"""The components as a Pulumi package, for programs in other languages."""

import sys
from importlib import metadata
from typing import Any

# Both SDKs register google.rpc.Status, and a process accepts only one. Google's copy serves gRPC
# errors only, and google.api_core works without this module.
sys.modules["grpc_status"] = None  # type: ignore[assignment]

from pulumi.errors import InputPropertiesError  # noqa: E402
from pulumi.provider import main  # noqa: E402
from pulumi.provider.experimental.component import ComponentProvider  # noqa: E402
from pulumi.provider.server import ComponentInitError  # noqa: E402

from outlast.components import shared  # noqa: E402
from outlast.components.experiment import Experiment  # noqa: E402
from outlast.components.foundation import Foundation  # noqa: E402
from outlast.settings import SettingsError  # noqa: E402


class Package(ComponentProvider):
    """The SDK's component provider; shows a refusal as one sentence."""

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        """Constructs a component, as the SDK does."""
        try:
            return super().construct(*args, **kwargs)
        except ComponentInitError as error:
            if isinstance(error.inner, SettingsError):
                raise InputPropertiesError(str(error.inner), []) from None
            raise


if __name__ == "__main__":
    shared.one_program_a_process = True
    package = Package([Experiment, Foundation], "outlast", version=metadata.version("outlast"))
    main(package, sys.argv[1:])
