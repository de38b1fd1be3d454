"""The program: one stack is one experiment, or the foundation of several."""

import gc

gc.disable()  # loads Pulumi's ten thousand classes quicker; this process ends with its run

from outlast.components.program import declare  # noqa: E402 - after gc.disable

declare()
