#!/usr/bin/env bash
# Question: which denoising steps can be skipped outright, and what does that cost? The fixed masks adaptive methods must beat.
# Time: about 8 minutes on 2 CPU cores. Expect: which step is skipped matters more than how many; skipping the last is ruinous.
set -euo pipefail
python -m fastcache.run -m method=reuse schedule=FRFF,FFRF,FFFR,FRRF,FFRR,FRRR prompts=eval num_videos=16 "$@"
