"""The layouts that tests of many combinations run on."""

import pytest

from fastcache.models import toy

# Plain text-to-video and two branches; I2V, which adds least to the first, where there is time.
LAYOUTS = [pytest.param(name, marks=pytest.mark.slow if name == "i2v" else ()) for name in toy.LAYOUTS]
