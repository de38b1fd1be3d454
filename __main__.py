"""The program: one stack is one experiment, or the foundation of several."""

import gc

gc.disable()  # loads Pulumi's ten thousand classes quicker; this process ends with its run

from outlast import settings  # noqa: E402 - after gc.disable
from outlast.components.experiment import Experiment  # noqa: E402
from outlast.components.foundation import Foundation  # noqa: E402

config = settings.load()
if config.part == "experiment":
    Experiment.of("experiment", config).export()
else:
    Foundation.of("foundation", config).export()
