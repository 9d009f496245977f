#!/usr/bin/env bash
# Question: does MotionCache's threshold move compute and quality smoothly on the bundled model?
# Time: about 7 minutes on 2 CPU cores. Expect: compute falls from 1 to near 0.5 (the floor of FxxF), PSNR falls with it.
set -euo pipefail
python -m fastcache.run -m method=motioncache thresh=0,0.05,0.1,0.3,1 prompts=eval num_videos=16 "$@"
