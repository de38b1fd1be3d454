"""The program: one stack is one experiment, or the foundation of several."""

import gc

gc.disable()  # the SDK's ten thousand classes are no garbage, and this process ends with its run

from outlast import settings  # noqa: E402 - after gc.disable, which makes the imports quick
from outlast.components.experiment import Experiment  # noqa: E402
from outlast.components.foundation import Foundation  # noqa: E402

config = settings.load()
if config.part == "foundation":
    Foundation("foundation", config).export()
else:
    Experiment("experiment", config).export()
