"""The components as a Pulumi package: what `pulumi package` and programs in other languages use."""

from pulumi.provider.experimental import component_provider_host

from outlast.components.experiment import Experiment
from outlast.components.foundation import Foundation

if __name__ == "__main__":
    component_provider_host(name="outlast", components=[Experiment, Foundation])
