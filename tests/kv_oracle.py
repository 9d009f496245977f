"""What every engine must show: a rollout kept as plain lists of frames."""

import torch
from kv_toys import rand

FRAME = 2  # tokens
CAPACITY = 24  # frames


class Oracle:
    """One block and tag: a (k, v) pair per frame, chunk boundaries in frames, the provisional chunk."""

    def __init__(self, window=None, sink=0):
        self.window, self.sink = window, sink
        self.frames, self.bounds, self.draft, self.gone = [], [0], None, 0  # gone: frames evicted behind the sink

    def sees(self, start, count):
        """Frames before ``start`` that a chunk of ``count`` frames there sees; None where one of them is gone."""
        if self.window is None or start + count <= self.window:
            seen = list(range(start))
        else:
            seen = list(range(self.sink)) + list(range(start + count - self.window + self.sink, start))
        return None if set(seen) & set(range(self.sink, self.sink + self.gone)) else seen

    def evict(self, count):
        """The first forward of a chunk of ``count`` frames behind the last one."""
        seen, held = self.sees(len(self.frames), count), len(self.frames) - self.gone
        self.gone += held - len(seen)

    def cut(self, bound):
        self.bounds, self.frames, self.draft = self.bounds[: self.bounds.index(bound) + 1], self.frames[:bound], None
        self.gone = 0 if bound <= self.sink else self.gone

    def held(self):
        return [f for i, f in enumerate(self.frames) if not self.sink <= i < self.sink + self.gone]


def rows(frames, part):
    return torch.cat([f[part] for f in frames], 1) if frames else rand(0)


def chunk(count):
    return [(rand(FRAME), rand(FRAME)) for _ in range(count)]
