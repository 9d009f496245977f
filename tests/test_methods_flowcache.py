"""FlowCache against an oracle in float64: one decision a group, with either indicator cut by its own frames."""

import oracles
import pytest
import toy

from fastcache.errors import UserError
from fastcache.methods.flowcache import FlowCache
from fastcache.rescale import Rescale

F, L = toy.GRID.frames, toy.GRID.tokens


@pytest.mark.parametrize("forced", [toy.FxxF, toy.FFxx, toy.Fxxx], ids=["FxxF", "FFxx", "Fxxx"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"group_size": 2},
        {"group_size": 3},
        {"group_size": 7},
        {"compare_with": "cached"},
        {"indicator": "e0"},
        {"indicator": "e0", "group_size": 2},
        {"rescale": Rescale([0.5, 0.2, 0.1])},
    ],
    ids=str,
)
def test_groups_match_an_oracle(options, forced):
    for thresh in (0.55, 0.75, 1.1):
        watch = oracles.Watch(FlowCache(thresh=thresh, **options))
        toy.rollout(watch, forced, chunks=2)
        tokens = [row["tokens"] for row in watch.seen]
        assert tokens == oracles.groupwise(watch.seen, watch.method, toy.GRID), thresh


def test_groups_decide_for_themselves():
    watch = oracles.Watch(FlowCache(thresh=0.7))
    toy.rollout(watch, toy.Fxxx)
    assert any(0 < len(row["tokens"]) < L for row in watch.seen)


# G1: e0 is per frame; cut with token bounds, groups after the first were empty and were never recomputed.


def test_every_group_sees_its_own_frames_of_e0():
    method = FlowCache(indicator="e0", thresh=1e9)
    distances = []
    toy.rollout(method, toy.Fxxx, chunks=1, on_step=lambda step, run, result: distances.append(method.decisions[-1]))
    assert distances[0] is None
    for row in distances[1:]:
        assert len(row) == F and all(value > 0 for value in row)
        assert row == pytest.approx([row[0]] * F)  # the toy's frames share a timestep


@pytest.mark.parametrize(
    "options",
    [
        {"group_size": 0},
        {"group_size": 1.5},
        {"group_size": True},
        {"group_size": "all"},
        {"compare_with": "first"},
    ],
    ids=str,
)
def test_bad_options_are_user_errors(options):
    with pytest.raises(UserError, match=next(iter(options))):
        FlowCache(**options)
