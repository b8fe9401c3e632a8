"""Runs of launches that come again with the same sizes and places: captured once by the driver, and launched as one."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from ..ir.errors import EngineError
from .driver import Device
from .launches import HostProgram, Segment
from .program import Binding

_LOG = logging.getLogger(__name__)

MOST = 16
"""What a context remembers: runs that came once, and graphs of those that came again."""
FEWEST = 4
"""Launches from which on a run is worth a graph."""
TOLD = (
    f"{FEWEST} launches or more in a row are replayed as a CUDA graph when they come again (docs/gpu.md), which was never executed on"
    " hardware; OURCC_CUDA_GRAPHS=0 turns that off"
)
"""What users are told of it."""

Key = tuple[int, int, int, bytes]


class CapturedRuns:
    """The graphs of one context, which runs on one stream at a time; they end with it, or when its memory moves."""

    def __init__(self, gpu: Device, host: HostProgram, is_on: bool = True) -> None:
        self.gpu = gpu
        self.host = host
        self.is_on = is_on
        self._stream = 0
        # The binding is held beside the graph, so that its id is its own.
        self._known: dict[Key, tuple[Binding, int]] = {}

    def run(self, segment: Segment, binding: Binding, cells: Any, scratch: int, stream: int, may_capture: bool) -> None:
        """Queue a run of steps: as a graph if it came before, which the second time it is captured."""
        if not may_capture or not self.is_on or len(segment.launches) < FEWEST:
            segment.run(self.host, self.gpu, binding, cells, scratch, stream)
            return
        key = segment.first, id(binding), scratch, bytes(cells)
        known = self._known.pop(key, None)
        graph = 0 if known is None else known[1]
        if known is not None and not graph:
            graph = self._capture(segment, binding, cells, scratch)
        if self.is_on:
            if len(self._known) >= MOST:
                self._end(self._known.pop(next(iter(self._known)))[1])
            self._known[key] = binding, graph
        if graph:
            self.gpu.driver.call("cuGraphLaunch", graph, stream)
        else:
            segment.run(self.host, self.gpu, binding, cells, scratch, stream)

    def _capture(self, segment: Segment, binding: Binding, cells: Any, scratch: int) -> int:
        """The graph of a run; 0 where the driver refuses, and then no other is tried."""
        try:
            if not self._stream:
                # Captured on a stream of its own: the default stream cannot be.
                self._stream = self.gpu.stream()
            graph = self.gpu.capture(self._stream, lambda: segment.run(self.host, self.gpu, binding, cells, scratch, self._stream))
        except EngineError as error:
            _LOG.warning("no graph of steps %d to %d, kernels are launched one by one: %s", segment.first, segment.end - 1, error.message)
            self.close()
            self.is_on = False
            return 0
        shown = ", ".join(f"{name} = {value}" for name, value in binding.values.items()) or "constant shapes"
        _LOG.info("captured %d launches for %s, steps %d to %d", len(segment.launches), shown, segment.first, segment.end - 1)
        return graph

    @property
    def count(self) -> int:
        """How many graphs there are."""
        return sum(graph != 0 for _, graph in self._known.values())

    def clear(self) -> None:
        """Drop all graphs: memory that they name has moved."""
        while self._known:
            self._end(self._known.popitem()[1][1])

    def close(self) -> None:
        """Give everything back."""
        self.clear()
        stream, self._stream = self._stream, 0
        if stream:
            self.gpu.driver.status("cuStreamDestroy_v2", stream)

    def _end(self, graph: int) -> None:
        # One that still runs ends when it is done.
        if graph:
            with contextlib.suppress(EngineError):
                self.gpu.driver.call("cuGraphExecDestroy", graph)
