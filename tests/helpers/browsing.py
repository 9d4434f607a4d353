"""Where the browser is, what drives it, and for how long it is waited."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHROMIUM = os.environ.get("NIP_CHROMIUM", "/usr/bin/chromium")
ENVIRONMENT = Path(os.environ.get("NIP_VIEW_ENV", ROOT / ".view-env"))
"""What scripts/build_view.sh builds."""
SCRIPTS = ROOT / "tests" / "browser"
PATIENCE_S = 300
