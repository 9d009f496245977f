#!/usr/bin/env bash
# Question: does an adaptive method beat the fixed mask of equal compute? 16 prompts of prompts=eval a row.
# Time: estimated at an hour to two on one core to itself. Expect: no; the last step must be computed, and masks know that.
set -euo pipefail
out=${1:-outputs/adaptive}
run() { python -m fastcache.run -m "$@" prompts=eval num_videos=16 outputs="$out"; }
run method=reuse schedule=FRFF,FFRF,FFFR,FRRF,FFRR,FRFR,FRRR
run method=taylorseer interval=1,1.5,2,3 schedule=FFxx
run method=teacache,flowcache,motioncache thresh=0.05,0.1,0.2,0.3,0.4,0.6,1 schedule=FxxF,Fxxx
python experiments/adaptive.py "$out"
