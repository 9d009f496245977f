"""Decisions of the cache methods worked out again in float64 from watched tensors, apart from the package's code.

A watched step is a dict: chunk, step, forced, indicator ([L, C], or [F, 6, C] for e0), output ([L, C] of a full pass,
else None) and tokens (what was computed).
"""

import numpy as np


class Watch:
    """A cache method with its runner looked over the shoulder: ``seen`` holds the watched steps, ``grid`` theirs."""

    def __init__(self, method):
        self.method, self.seen, self.grid = method, [], None

    def __getattr__(self, name):
        return getattr(self.method, name)

    def step(self, step, run):
        runner, self.grid = WatchedRunner(run), step.grid
        result = self.method.step(step, runner)
        read = getattr(self.method, "indicator", "modulated_input") == "e0"
        indicator = (step.e0 if read else run.modulated_input()).double().numpy()[0]
        tokens = list(range(step.grid.tokens)) if runner.ran_full else runner.tokens
        assert result.fraction == len(tokens) / step.grid.tokens
        output = result.x.double().numpy()[0] if runner.ran_full else None
        self.seen.append({
            "chunk": step.chunk_idx, "step": step.step_idx, "forced": step.forced_full,
            "indicator": indicator, "output": output, "tokens": tokens,
        })  # fmt: skip
        return result


class WatchedRunner:
    def __init__(self, run):
        self.run, self.ran_full, self.tokens = run, False, []

    def __getattr__(self, name):
        return getattr(self.run, name)

    def full(self):
        self.ran_full = True
        return self.run.full()

    def record(self):
        self.ran_full = True
        return self.run.record()

    def selected(self, tokens):
        self.tokens = tokens.tolist()
        return self.run.selected(tokens)


def relative(now, then, axis=None):
    return np.abs(now - then).mean(axis) / np.abs(then).mean(axis)


def rescaled(distance, rescale):
    if rescale is None:
        return distance
    value = np.polyval(rescale.coefficients, distance)
    return np.maximum(value, 0) if rescale.clamp else value


def motion_weights(output, former, frames, norm, floor):
    """[L, C] and the last frame before it [S, C], or None, -> [L]"""
    frame = output.reshape(frames, -1, output.shape[-1])
    rows = [relative(frame[f], frame[f - 1], -1) for f in range(1, frames)]
    rows.insert(0, rows[0] if former is None else relative(frame[0], former, -1))
    rows = np.stack(rows)
    high, low = rows.max(1, keepdims=True), rows.min(1, keepdims=True)
    scaled = {"mean": rows / rows.mean(1, keepdims=True), "max": rows / high}
    scaled["max_rescale"] = floor + (1 - floor) * (rows - low) / (high - low)
    return scaled[norm].reshape(-1)


def motioncache(seen, o, grid):
    """Tokens that MotionCache with the options of ``o`` computes at each watched step."""
    frames = grid.frames
    chunk, chosen, ours = None, [], {}
    for row in seen:
        if row["chunk"] != chunk:
            chunk, former, ours = row["chunk"], ours, {}
        now = row["indicator"]
        if row["forced"]:
            last = None
            if former:
                last = former[row["step"]] if o.frame0 == "same_step" else former[max(former)]
            weights = motion_weights(row["output"], last, frames, o.weight_norm, o.weight_floor)
            ours[row["step"]] = row["output"].reshape(frames, -1, row["output"].shape[-1])[-1]
            score, then = np.zeros(len(weights)), now
            chosen.append(list(range(len(weights))))
            continue
        distance = rescaled(relative(now, then, None if o.distance == "chunk" else -1), o.rescale)
        score, then = score + distance * weights, now
        need = score >= o.thresh
        if o.temporal_consistency:
            need = np.tile(need.reshape(frames, -1).mean(0) > o.temporal_thresh, frames)
        if 0 < need.sum() < o.min_update_ratio * len(score):
            need[:] = False
        score[need] = 0
        chosen.append(np.flatnonzero(need).tolist())
    return chosen


def groupwise(seen, o, grid):
    """Tokens that FlowCache, or TeaCache, whose one group is the chunk, computes at each watched step."""
    chunk, chosen, frames, span = None, [], grid.frames, grid.tokens_per_frame
    size = getattr(o, "group_size", frames)
    groups = [list(range(f, min(f + size, frames))) for f in range(0, frames, size)]
    for row in seen:
        if row["chunk"] != chunk:
            chunk, scores, then = row["chunk"], [0.0] * len(groups), [None] * len(groups)
        indicator = row["indicator"] if o.indicator == "e0" else np.stack(np.split(row["indicator"], frames))
        tokens = []
        for g, members in enumerate(groups):
            now, due = indicator[members], row["forced"]
            if not due:
                scores[g] += rescaled(relative(now, then[g]), o.rescale)
                due = scores[g] >= o.thresh
            if due:
                scores[g] = 0.0
                tokens += [t for f in members for t in range(f * span, (f + 1) * span)]
            if due or o.compare_with == "previous":
                then[g] = now
        chosen.append(tokens)
    return chosen
