"""The settings of guidance: what a run makes of them, on disk and in its tables, and what is refused."""

import functools

import pytest
import yaml
from command import fastcache, only, read, runs

from fastcache import api, calibrate, config, make, memory, preflight, results
from fastcache.cost import Sizes
from fastcache.errors import UserError
from fastcache.methods.motioncache import MotionCache
from fastcache.methods.none import NoCache
from fastcache.noise import Noise
from fastcache.sample import rollout
from fastcache.sampler import FewStep
from fastcache.settings import reference_of, resolve

PROMPT, OTHER, SCALE = "a red circle moves left", "a blue square stays", 3.0
GUIDED = ("frames=3", "num_videos=1", "guidance_scale=3")


def load(layout: str):
    return api.build_model({"_target_": "fastcache.models.toy.load", "layout": layout}, None, "cpu", "float32")


def settings(*words: str):
    return resolve(*composed(*words))


@functools.cache
def composed(*words: str):
    (job,) = config.plan(["model=toy", "rescale=none", "device=cpu", *words]).jobs
    return job


def signature(*words: str) -> str:
    return results.signature(settings(*words))


def test_without_guidance_the_signature_is_what_it_was():
    s = settings("method=teacache", "thresh=0.3")
    before = {key: value for key, value in s.items() if "guidance" not in key and key != "negative_prompt"}
    assert (
        results.signature(before)
        == results.signature(s)
        == signature("method=teacache", "thresh=0.3", "guidance_scale=1")
    )
    assert not [key for key in results.signed(s) if "guidance" in key or "negative" in key]


def test_settings_of_guidance_enter_the_signature():
    base = ("method=teacache", "guidance_scale=3")
    words = [(), ("guidance_scale=4",), ("negative_prompt=a cross stays",), ("guidance_decisions=shared",)]
    assert len({signature(*{w.partition("=")[0]: w for w in (*base, *more)}.values()) for more in words}) == 4
    assert signature(*base) == signature("method=teacache", "guidance_scale=3.0", "negative_prompt=")


def test_decisions_matter_where_something_is_compared():
    for method in ("none", "taylorseer"):
        words = (f"method={method}", "guidance_scale=3")
        assert signature(*words) == signature(*words, "guidance_decisions=shared")
    shared = settings("method=teacache", "guidance_scale=3", "guidance_decisions=shared")
    assert results.signature(reference_of(shared)) == signature("method=none", "schedule=FFFF", "guidance_scale=3")


def test_a_negative_prompt_is_free_text():
    s = settings("guidance_scale=3", "negative_prompt=blurry, dark: 3 ${x} {y}")
    assert s["negative_prompt"] == "blurry, dark: 3 ${x} {y}"
    assert settings("guidance_scale=3", "negative_prompt=null")["negative_prompt"] is None


def test_guided_runs_share_a_guided_reference(out, capsys):
    words = (*GUIDED, f"outputs={out}", "negative_prompt=a blue square, still")
    assert fastcache("-m", "method=teacache", "thresh=1", "guidance_decisions=separate,shared", *words) == 0
    said = capsys.readouterr().out
    assert len(runs(out)) == 3
    reference = yaml.safe_load((only(out, "none-*") / "config.yaml").read_text())
    assert (reference["guidance_scale"], reference["negative_prompt"]) == (3.0, "a blue square, still")
    folders = sorted(out.glob("teacache-*"))
    scores = [read(folder / "scores.json") for folder in folders]
    assert {row["reference"] for row in scores} == {reference["signature"]}
    assert {row["guidance_decisions"] for row in scores} == {"separate", "shared"}
    assert {row["guidance_scale"] for row in scores} == {3.0}
    assert "guidance 3" in said and "guidance_decisions" in said
    assert "note: toy was not trained for guidance" in said

    assert fastcache("method=none", "schedule=FFFF", "frames=3", "num_videos=1", f"outputs={out}") == 0
    alone = next(row for row in map(read, out.glob("none-*/scores.json")) if row["guidance_scale"] == 1)
    guided = next(row for row in map(read, out.glob("none-*/scores.json")) if row["guidance_scale"] == 3)
    assert guided["kv_bytes"] == 2 * alone["kv_bytes"] and guided["flops_fraction"] == 1

    words = (*GUIDED, f"outputs={out}", "method=reuse", f"reference={alone['signature']}")
    assert fastcache(*words) == 0, "a run may be scored against one without guidance, if it is named"
    found = read(only(out, "reuse-*") / "scores.json")
    assert found["reference"] == alone["signature"]
    assert (found["forward_fraction"], found["ceiling"]) == pytest.approx((2 * 0.6, 1 / 1.2))  # FxxF, twice as wide
    assert results.differing(settings(*GUIDED), settings("frames=3", "num_videos=1")) == [
        "guidance_scale: 3 here, null there", "guidance_decisions: \"separate\" here, null there"
    ]  # fmt: skip


def test_a_fit_is_said_to_be_made_without_guidance(out, capsys, tmp_path):
    words = ("method=teacache", "thresh=0.3", *GUIDED, f"outputs={out}", "rescale=auto")
    assert fastcache(*words) == 0
    assert "fits are made without guidance" in " ".join(capsys.readouterr().out.split())
    (fit,) = (out / "fits").glob("*.yaml")
    assert fastcache(*words[:2], "frames=3", "num_videos=1", f"outputs={out}", "rescale=auto") == 0
    assert [*(out / "fits").glob("*.yaml")] == [fit], "the same fit serves runs without guidance"


def test_the_negative_prompt_is_encoded_before_the_model_is_loaded(monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(api, "prepare", lambda node, texts, *_: asked.extend(texts))
    for words, more in (((), []), (GUIDED[2:], [""]), ((*GUIDED[2:], f"negative_prompt={OTHER}"), [OTHER])):
        asked.clear()
        make.get_model(settings(f"prompt={PROMPT}", *words))
        assert asked == [PROMPT, *more]


@pytest.mark.parametrize("layout", ["t2v", "vace"])
def test_memory_is_planned_for_both_passes(layout):
    model, method = load(layout), MotionCache(thresh=1.25)
    made = api.generate(model, PROMPT, method, frames=6, guidance_scale=SCALE).rollout
    sizes = Sizes.of(model.dit.config, model.latent_shape, 3)
    one, two = (memory.estimate(sizes, 2, 4, method, memory.Around(), passes) for passes in (1, 2))
    assert sum(two.kv.values()) == made.kv_bytes
    assert (two.working, two.method) == (2 * one.working, 2 * one.method)
    assert two.weights == one.weights and two.forward == one.forward
    words = ("method=motioncache", f"model.layout={layout}")
    plans = [preflight.planned(settings(*words, *more)) for more in ((), ("guidance_scale=2",))]
    assert plans[1].kv == {branch: 2 * count for branch, count in plans[0].kv.items()}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("guidance_scale=0.5", "guidance_scale=0.5: expected a number, 1 or more"),
        ("guidance_scale=nan", "guidance_scale=nan"),
        ("guidance_scale=strong", "guidance_scale=strong"),
        ("guidance_scale=true", "guidance_scale=True"),
        ("guidance_scale=", "guidance_scale="),
        ("negative_prompt=blurry", "add guidance_scale=5"),
        ("guidance_scale=3 guidance_decisions=common", "separate, shared"),
        ("guidance_scael=3", "Did you mean guidance_scale?"),
        ("model=tiny_t2v guidance_scale=3 negative_prompt=zebra", "negative_prompt=zebra: "),
    ],
)
def test_a_command_is_refused(words, says, capsys, tmp_path):
    for sweep in ((), ("-m", "seed=0,1")):
        assert fastcache(*sweep, *words.split(), "method=none", f"outputs={tmp_path}/out") == 1
        error = capsys.readouterr().err
        assert says in error and "Traceback" not in error and len(error.strip().splitlines()) <= 3
        assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize("word", ["guidance_scale=3", "negative_prompt=blurry", "guidance_decisions=shared"])
def test_calibration_has_no_use_for_guidance(word, capsys):
    assert calibrate.main(["model=toy", word]) == 1
    assert f"without guidance; it has no use for {word.partition('=')[0]}" in capsys.readouterr().err


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.5, -3, "5", True])
def test_a_bad_scale_is_refused(bad) -> None:
    with pytest.raises(UserError, match="guidance_scale="):
        api.generate(load("t2v"), PROMPT, frames=3, guidance_scale=bad)


def test_settings_that_guidance_alone_reads_are_refused_without_it() -> None:
    model = load("t2v")
    with pytest.raises(UserError, match="used by guidance alone"):
        api.generate(model, PROMPT, frames=3, negative_prompt=OTHER)
    with pytest.raises(UserError, match="separate, shared"):
        api.generate(model, PROMPT, frames=3, guidance_scale=SCALE, guidance_decisions="common")


@pytest.mark.parametrize(("scale", "negative"), [(2.0, False), (1.0, True), (0.5, True), (float("nan"), True)])
def test_a_scale_and_a_negative_come_together(scale: float, negative: bool) -> None:
    model = load("t2v")
    condition = model.condition(PROMPT, 0, 3)
    methods = {"pos": NoCache(), "neg": NoCache()} if negative else {"pos": NoCache()}
    with pytest.raises(UserError, match="guidance above 1"):
        rollout(
            model, methods, FewStep(), (True,) * 4, condition, 3, Noise(0).of(0),
            negative=condition if negative else None, guidance=scale,
        )  # fmt: skip
