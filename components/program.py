"""The program of a stack: declares what its settings say."""

from outlast import settings
from outlast.components.experiment import Experiment
from outlast.components.foundation import Foundation


def declare() -> None:
    """Declares an experiment, or what several share, as `outlast:part` says, and exports it.

    Raises SettingsError."""
    config = settings.load()
    kind = Experiment if config.part == "experiment" else Foundation
    kind.of(kind.__name__.lower(), config).export()
