"""Labels of nodes, `key=value`: how they are written, for whoever sets them and whoever asks for them."""

from __future__ import annotations

import re

LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}=[A-Za-z0-9._-]{0,63}")
LONGEST_LABEL = 127
