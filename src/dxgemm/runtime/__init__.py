"""Running kernels: arrays of any library, streams, devices, launches, and the simulator."""
