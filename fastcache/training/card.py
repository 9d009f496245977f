"""Ship a trained model: python -m fastcache.training.card runs/tiny_t2v

Writes the averaged weights into the package and, beside them, the model card: recipe, loss curve, measured quality on
unseen prompts, how much each denoising step matters, and samples. What else is to be said of a training, such as
settings changed on the way, is taken from ``notes.md`` in its folder.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from string import Template

import matplotlib
import numpy as np
import torch

from fastcache.errors import UserError
from fastcache.kv_cache import VanillaKVCacheEngine
from fastcache.models import tiny
from fastcache.models.tiny_latents import decode
from fastcache.models.video_model import VideoModel
from fastcache.models.weights import save_weights
from fastcache.training import quality
from fastcache.training.recipe import SIGMA_ODDS, SIGMAS, Recipe
from fastcache.world.measure import Sighting, summary
from fastcache.world.render import draw_unsaid, render
from fastcache.world.scene import FRAMES, SIZE

matplotlib.use("Agg")
TEMPLATE = Path(__file__).with_name("card_template.md")
SAMPLES = 8
INPUTS = {
    "t2v": "a few plain words",
    "i2v": "its first frame and a few plain words",
    "vace": "a control video and a few plain words",
}
SHOWS = {
    "t2v": "",
    "i2v": """Here the first frame is given and shows them too.
The text encoder places the sprites where the picture has them; the background's words are left out of a share of the
texts.""",
    "vace": """Here the control shows each sprite's silhouette in its
colour; most training clips let sprites sway about their ways, which no words tell, and the text says nothing of places
and motion. Some controls end early. Positions below are measured against the control, every second one swaying.""",
}
SHOWN = range(0, FRAMES, 2)


def ship(run: Path, prompts: int = 64) -> Path:
    """Export ``run``'s checkpoint as the package's model of its layout; returns the card's path.

    Raises UserError where ``run`` holds no checkpoint.
    """
    checkpoint = run / "checkpoint.pt"
    if not checkpoint.is_file():
        raise UserError(f"{checkpoint}: no such file; train first: python -m fastcache.train out={run}")
    state = torch.load(checkpoint, weights_only=True)
    recipe = Recipe(**state["recipe"])
    name = f"tiny_{recipe.layout}"
    weights = tiny.WEIGHTS / f"{name}.safetensors"
    tiny.WEIGHTS.mkdir(exist_ok=True)
    told = {
        "config": tiny.tiny_config(recipe.layout).to_dict(),
        "recipe": settings(recipe),
        "iterations": state["iteration"],
    }
    save_weights(state["average"], weights, torch.float16, told)
    model = tiny.load(weights, name=name, layout=recipe.layout)
    model.dit.set_kv_engines(lambda branch: VanillaKVCacheEngine())
    print(f"measuring {prompts} unseen prompts", flush=True)
    found = quality.sightings(model, prompts)
    steps = quality.step_table(model)
    draw_curve(state["curve"], tiny.WEIGHTS / f"{name}_loss.png")
    draw_samples(model, tiny.WEIGHTS / f"{name}_samples.png")
    card = tiny.WEIGHTS / f"{name}.md"
    notes = run / "notes.md"
    remarks = notes.read_text() if notes.is_file() else ""
    card.write_text(write_card(model, recipe, state, found, steps, prompts, remarks))
    return card


def settings(recipe: Recipe) -> dict:
    """What shaped the training; where its files lay did not."""
    told = {key: value for key, value in asdict(recipe).items() if key != "out"}
    return told | {"start": Path(recipe.start).name}


def draw_curve(curve: list[list[float]], path: Path) -> None:
    import matplotlib.pyplot as plt

    _, seconds, loss = np.array(curve).T
    figure, axis = plt.subplots(figsize=(6, 3), dpi=120)
    axis.plot(seconds / 60, loss)
    axis.set(
        xlabel="minutes",
        ylabel="weighted flow loss",
        yscale="log",
        title="mean of 50 iterations; clips join single frames at the step up",
    )
    axis.set_title("mean of 50 iterations; clips join single frames where it steps up", fontsize=8)
    axis.grid(alpha=0.3, which="both")
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)


def draw_samples(model: VideoModel, path: Path) -> None:
    """For unseen prompts: what they imply or what is shown above, the 4-step sample below, every 2nd frame."""
    import matplotlib.pyplot as plt

    cases = quality.unseen(model, SAMPLES)
    figure, axes = plt.subplots(SAMPLES, 1, figsize=(11, 2.35 * SAMPLES), dpi=80)
    for axis, case in zip(axes, cases, strict=True):
        rows = [above(case), decode(quality.generate(model, case))]
        strip = [np.concatenate([framed(video[t]) for t in SHOWN], 1) for video in rows]
        axis.imshow(np.concatenate(strip, 0), interpolation="nearest")
        axis.set_title(case.prompt, fontsize=10, loc="left")
        axis.set_axis_off()
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)


def above(case: quality.Case) -> np.ndarray:
    """The video [FRAMES, SIZE, SIZE, 3] above a sample: the control; the given picture and then blanks; a drawing."""
    if case.shown is None:
        drawn, _ = render(case.scene, draw_unsaid(case.scene, np.random.default_rng(case.seed)), np.arange(FRAMES))
        return (drawn.clip(0, 1) * 255).astype(np.uint8)
    if case.shown.ndim == 4:
        return case.shown
    return np.concatenate((case.shown[None], np.full((FRAMES - 1, *case.shown.shape), 255, np.uint8)))


def framed(picture: np.ndarray) -> np.ndarray:
    return np.pad(picture, ((1, 1), (1, 1), (0, 0)), constant_values=255)


def write_card(
    model: VideoModel,
    recipe: Recipe,
    state: dict,
    found: list[Sighting],
    steps: dict[str, list[float]],
    prompts: int,
    notes: str,
) -> str:
    size = (tiny.WEIGHTS / f"{model.name}.safetensors").stat().st_size
    slashes = {name: " / ".join(f"{value:.1f}" for value in values) for name, values in steps.items()}
    return Template(TEMPLATE.read_text()).substitute(
        name=model.name,
        parameters=f"{sum(p.numel() for p in model.dit.parameters()) / 1e6:.2f}",
        frames=FRAMES,
        pixels=SIZE,
        megabytes=f"{size / 1e6:.1f}",
        sha256=model.weights_hash,
        hours=f"{state['seconds'] / 3600:.2f}",
        threads=recipe.threads,
        iterations=state["iteration"],
        seed=recipe.seed,
        recipe=json.dumps(settings(recipe)),
        levels=", ".join(f"{s:.4g} ({o:.0%})" for s, o in zip(SIGMAS.tolist(), SIGMA_ODDS.tolist(), strict=True)),
        prompts=prompts,
        quality=quality_table(found),
        first=slashes["first_chunk"],
        later=slashes["later_chunks"],
        fewer=slashes["fewer_steps"],
        fewer_lists=", ".join(str(list(steps)) for steps in quality.FEWER.values()),
        renoise=f"{recipe.renoise:.0%}",
        notes=notes,
        inputs=INPUTS[recipe.layout],
        shown=SHOWS[recipe.layout],
        kept=kept_line(model, prompts),
    )


def kept_line(model: VideoModel, prompts: int) -> str:
    if model.needs != ("image",):
        return ""
    found = quality.kept(model, prompts)
    return (
        f"\nOf the given picture it keeps, medians: frame 0 at {found['first']:.1f} dB PSNR; the background of frame "
        f"20 at {found['background']:.1f} dB where no sprite is, brightness matched by one factor.\n"
    )


def quality_table(found: list[Sighting]) -> str:
    lines = [
        "| frame | sprites | within 2/48 of the frame | colour right | shape right | median error, px |",
        "|---|---|---|---|---|---|",
    ]
    for frame in (1, 10, 20, None):
        s = summary([one for one in found if frame in (None, one.frame)])
        shares = " | ".join(f"{s[key]:.1%}" for key in ("near", "color", "shape"))
        lines.append(f"| {frame or 'all'} | {s['n']} | {shares} | {s['median_error_px']:.2f} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        if len(args) != 1:
            raise UserError(
                "one argument expected, the training folder: python -m fastcache.training.card runs/tiny_t2v"
            )
        print(ship(Path(args[0])))
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
