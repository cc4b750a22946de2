"""A sweep over a simulated device, and all it emitted."""

from kernels.backends.simulated import SimulatedDevice
from kernels.backends.truth import Truth
from kernels.events import PointMeasured, RowMeasured
from kernels.parameters import resolve
from kernels.sweeps import SWEEP_FUNCTIONS, SweepRun


class Recorded:
    """A sweep's events and result."""

    def __init__(self, device, sweep, given=None, constants=None, **options):
        self.events = []
        self.parameters = resolve(sweep, given or {}, device.description.limits)
        run = SweepRun(device, self.parameters, constants or {}, self.events.append, **options)
        self.result = None
        self.finish = lambda: SWEEP_FUNCTIONS[sweep](run)

    def run(self):
        self.result = self.finish()
        return self

    @property
    def rows(self):
        return [event for event in self.events if isinstance(event, RowMeasured)]

    @property
    def points(self):
        return [event for event in self.events if isinstance(event, PointMeasured)]


def recorded(sweep, given=None, device=None, constants=None, **options):
    return Recorded(device or SimulatedDevice(Truth("toy")), sweep, given, constants, **options)
