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
SHOWN = range(0, FRAMES, 2)


def ship(run: Path, name: str = "tiny_t2v", prompts: int = 64) -> Path:
    """Export ``run``'s checkpoint as the package's ``name``; returns the card's path.

    Raises UserError where ``run`` holds no checkpoint.
    """
    checkpoint = run / "checkpoint.pt"
    if not checkpoint.is_file():
        raise UserError(f"{checkpoint}: no such file; train first: python -m fastcache.train out={run}")
    state = torch.load(checkpoint, weights_only=True)
    recipe = Recipe(**state["recipe"])
    weights = tiny.WEIGHTS / f"{name}.safetensors"
    tiny.WEIGHTS.mkdir(exist_ok=True)
    told = {"config": tiny.tiny_config().to_dict(), "recipe": settings(recipe), "iterations": state["iteration"]}
    save_weights(state["average"], weights, torch.float16, told)
    model = tiny.load(weights, name=name)
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
    return {key: value for key, value in asdict(recipe).items() if key != "out"}


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
    """For unseen prompts: a drawing of what the words imply above, the 4-step sample below, every second frame."""
    import matplotlib.pyplot as plt

    scenes = quality.unseen(SAMPLES)
    figure, axes = plt.subplots(SAMPLES, 1, figsize=(11, 2.35 * SAMPLES), dpi=80)
    for i, (axis, (prompt, scene)) in enumerate(zip(axes, scenes, strict=True)):
        drawn, _ = render(scene, draw_unsaid(scene, np.random.default_rng(i)), np.arange(FRAMES))
        made = tiny.decode(quality.generate(model, scene, quality.UNSEEN + i))
        rows = [(drawn.clip(0, 1) * 255).astype(np.uint8), made]
        strip = [
            np.concatenate([np.pad(v[t], ((1, 1), (1, 1), (0, 0)), constant_values=255) for t in SHOWN], 1)
            for v in rows
        ]
        axis.imshow(np.concatenate(strip, 0), interpolation="nearest")
        axis.set_title(prompt, fontsize=10, loc="left")
        axis.set_axis_off()
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
    plt.close(figure)


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
