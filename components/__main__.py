"""The components as a Pulumi package, for programs in other languages."""

from pulumi.provider.experimental import component_provider_host

from outlast.components import shared
from outlast.components.experiment import Experiment
from outlast.components.foundation import Foundation

if __name__ == "__main__":
    shared.one_program_a_process = True
    component_provider_host(name="outlast", components=[Experiment, Foundation])
