"""Command lines that are refused, what each is told, and which of them the default suite also tries as a sweep."""

import pytest
from command import fastcache

REFUSED = {
    "misspelt method": ("method=motioncach thresh=0.3", "Did you mean motioncache?"),
    "misspelt sampler": ("sampler=few_stp", "Did you mean few_step?"),
    "misspelt model": ("model=tyo", "Did you mean toy?"),
    "misspelt key": ("thersh=0.3", "Did you mean thresh?"),
    "misspelt nested key": ("sampler.renois=shared", "Did you mean sampler.renoise?"),
    "another method's dial": ("method=none thresh=0.3", "method=none has no thresh"),
    "another method's dial by force": ("method=none ++thresh=0.3", "method=none has no thresh"),
    "an added dial": ("method=none +thresh=0.3", "method=none has no thresh"),
    "an added dial that is there": ("method=teacache +thresh=0.3", "write thresh=0.3"),
    "an unread key": ("+speed=fast", "no run reads speed"),
    "an unread nested key": ("engine.fast=true", "no run reads engine.fast"),
    "an unknown method option": ("method=motioncache +method.weight_nrm=max", "Did you mean weight_norm?"),
    "an unknown engine option": ("+engine.bits=4", "has no option bits"),
    "a bad method option": ("method=motioncache method.weight_norm=sum", "choose one of mean, max, max_rescale"),
    "the interval of a method with a threshold": ("method=teacache interval=2", "its dial is thresh"),
    "the threshold of a method with an interval": ("method=taylorseer thresh=0.1", "its dial is interval"),
    "an interval below 1": ("method=taylorseer interval=0.5", "interval=0.5: expected a number, 1 or more"),
    "an order too high": ("method=taylorseer method.max_order=4", "max_order=4 must be 0, 1, 2 or 3"),
    "a negative order": ("method=taylorseer method.max_order=-1", "max_order=-1 must be 0, 1, 2 or 3"),
    "an unknown scope": ("method=taylorseer method.scope=block", "choose one of module, stack"),
    "groups of no frames": ("method=flowcache method.group_size=0", "group_size=0 must be a whole number"),
    "a fit of too high a degree": ("method=teacache rescale=auto rescale.degree=7", "from 0 to 4"),
    "a gate in words": ("method=teacache rescale=auto rescale.gate=soft", "true or false"),
    "a per-frame indicator": ("method=motioncache indicator=e0", "per-token indicator"),
    "wrong letter": ("method=reuse schedule=FxyF", "letter 'y'"),
    "wrong length": ("method=reuse schedule=FxF", "3 letters; expected 4"),
    "not starting with F": ("method=reuse schedule=xFFF", "must be F"),
    "negative threshold": ("method=teacache thresh=-0.1", "thresh=-0.1"),
    "threshold not a number": ("method=teacache thresh=nan", "thresh=nan"),
    "threshold a word": ("method=teacache thresh=much", "thresh=much: expected a number"),
    "threshold without a value": ("method=teacache thresh=", "expected a number"),
    "no videos": ("num_videos=0", "num_videos=0: expected a whole number, 1 or more"),
    "more videos than prompts": ("num_videos=5", "prompts=smoke holds 4"),
    "chunks behind the end": ("method=reuse frames=9 method.chunks=[3,4]", "frames=9 are chunks 0 to 2"),
    "a folder that is none": ("engine=offload engine.folder=/proc/nope", "engine.folder=/proc/nope cannot be written"),
    "half a chunk": ("frames=7", "frames=6 or frames=9"),
    "no frames": ("frames=0", "frames=0"),
    "a seed in words": ("seed=lucky", "seed=lucky"),
    "missing prompts file": ("prompts=nowhere.txt", "no such file"),
    "misspelt prompts": ("prompts=smok", "Did you mean smoke?"),
    "missing fit": ("rescale=nowhere.yaml", "no such file"),
    "missing weights": ("weights=nowhere.safetensors", "no such file"),
    "unknown device": ("device=gpu", "auto, cpu, cuda"),
    "unknown dtype": ("dtype=half", "float32"),
    "unknown metric": ("metric=[psnr,lpip]", "Did you mean lpips?"),
    "missing LPIPS weights": ("metric=[lpips] metric.lpips.weights=nowhere.pth", "no such file"),
    "unknown tracking": ("tracking=wandb", "offline"),
    "a switch in words": ("force=maybe", "true or false"),
    "no such reference": ("reference=0123abcd", "no finished run"),
    "euler under another sampler": ("method=euler sampler=few_step", "leave sampler= out"),
    "a sweep without -m": ("seed=0,1", "add -m"),
    "a list written as a sweep": ("metric=psnr,lpips", "metric=[...]"),
    "no option at all": ("teacache", "name=value"),
    "a flag": ("--thresh 0.3", "name=value"),
    "two modes at once": ("-m --cfg job", "leave one of them out"),
    "an unreadable line": ("thresh={", "cannot be read"),
    "a group left out": ("~method", "cannot be left out"),
    "an added group": ("+method=none", "without +"),
}
SWEPT = {name: case for name, case in REFUSED.items() if "sweep" not in name and "-" not in case[0][:2]}

# The first of each place that can refuse a job, which a sweep asks just as a single run does.
EACH_STAGE = (
    *("misspelt method", "misspelt key", "misspelt nested key", "another method's dial", "a bad method option"),
    *("a per-frame indicator", "wrong letter", "no videos", "half a chunk", "missing weights", "unknown metric"),
    *("no such reference", "an unreadable line"),
)


def most_slow(cases, kept):
    """Parameters of ``cases``, those that are not ``kept`` by name for the slow suite."""
    assert set(kept) <= set(cases)
    return [
        pytest.param(*case, id=name, marks=() if name in kept else pytest.mark.slow) for name, case in cases.items()
    ]


def refused(capsys, outputs, *words):
    """The message of a command that must be refused before anything is written."""
    status = fastcache(*words, f"outputs={outputs}")
    out, err = capsys.readouterr()
    assert status == 1, out + err
    assert err.startswith("error: ")
    assert "Traceback" not in out + err
    assert len(err.strip().splitlines()) <= 3
    assert out == ""
    assert not outputs.is_dir() or not list(outputs.iterdir())
    return err
