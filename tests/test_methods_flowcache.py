"""FlowCache against an oracle in float64: one decision a group, with either indicator cut by its own frames."""

import numpy as np
import pytest
import toy

from fastcache.errors import UserError
from fastcache.methods.flowcache import FlowCache
from fastcache.rescale import Rescale

F, S, L = toy.GRID.frames, toy.GRID.tokens_per_frame, toy.GRID.tokens
FIT = [0.5, 0.2, 0.1]


def watch(method, forced):
    """Per step: chunk_idx, forced, indicator by frames [F, ...], tokens computed."""
    seen = []

    def on_step(step, run, result):
        indicator = step.e0 if method.indicator == "e0" else run.modulated_input().view(1, F, S, -1)
        asked = run.asked.tolist() if run.asked is not None else list(range(L)) if result.fraction else []
        assert result.fraction == len(asked) / L
        seen.append((step.chunk_idx, step.forced_full, indicator.double().numpy()[0], asked))

    toy.rollout(method, forced, chunks=2, on_step=on_step)
    return seen


def oracle(seen, thresh, size, compare_with, coefficients):
    chunk, chosen = None, []
    for chunk_idx, forced, indicator, _ in seen:
        groups = [list(range(f, min(f + size, F))) for f in range(0, F, size)]
        if chunk_idx != chunk:
            chunk, scores, references = chunk_idx, [0.0] * len(groups), [None] * len(groups)
        tokens = []
        for g, frames in enumerate(groups):
            now, then = indicator[frames], references[g]
            if forced:
                due, scores[g] = True, 0.0
            else:
                distance = np.abs(now - then).mean() / np.abs(then).mean()
                scores[g] += distance if coefficients is None else np.polyval(coefficients, distance)
                due = scores[g] >= thresh
            if due:
                scores[g] = 0.0
                tokens += [t for f in frames for t in range(f * S, (f + 1) * S)]
            if due or compare_with == "previous":
                references[g] = now
        chosen.append(tokens)
    return chosen


@pytest.mark.parametrize("forced", [toy.FxxF, toy.FFxx, toy.Fxxx], ids=["FxxF", "FFxx", "Fxxx"])
@pytest.mark.parametrize("options", [
    {}, {"group_size": 2}, {"group_size": 3}, {"group_size": 7}, {"compare_with": "cached"}, {"indicator": "e0"},
    {"indicator": "e0", "group_size": 2}, {"rescale": Rescale(FIT)},
], ids=str)
def test_groups_match_an_oracle(options, forced):
    coefficients = FIT if "rescale" in options else None
    for thresh in (0.55, 0.75, 1.1):
        method = FlowCache(thresh=thresh, **options)
        seen = watch(method, forced)
        expected = oracle(seen, thresh, min(method.group_size, F), method.compare_with, coefficients)
        assert [row[-1] for row in seen] == expected, thresh


def test_groups_decide_for_themselves():
    rows = [row for thresh in (0.6, 0.7, 0.8) for row in watch(FlowCache(thresh=thresh), toy.Fxxx)]
    assert any(0 < len(tokens) < L for *_, tokens in rows)


# G1: e0 is per frame; cut with token bounds, groups after the first were empty and were never recomputed.


def test_every_group_sees_its_own_frames_of_e0():
    method = FlowCache(indicator="e0", thresh=1e9)
    distances = []
    toy.rollout(method, toy.Fxxx, chunks=1, on_step=lambda step, run, result: distances.append(method.decisions[-1]))
    assert distances[0] is None
    for row in distances[1:]:
        assert len(row) == F and all(value > 0 for value in row)
        assert row == pytest.approx([row[0]] * F)  # the toy's frames share a timestep


@pytest.mark.parametrize("options", [
    {"group_size": 0}, {"group_size": 1.5}, {"group_size": True}, {"group_size": "all"}, {"compare_with": "first"},
], ids=str)
def test_bad_options_are_user_errors(options):
    with pytest.raises(UserError, match=next(iter(options))):
        FlowCache(**options)
