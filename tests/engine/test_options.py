"""The table of options that the operator checks arguments with is what the installed SGLang's parser says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.engine.environment import REPOSITORY, engine_variables, ensure_environment


def test_the_table_is_the_parsers(tmp_path: Path) -> None:
    """Made anew: `tools/sglang_options.py` says how."""
    command = [str(ensure_environment()), str(REPOSITORY / "tools" / "sglang_options.py")]
    made = subprocess.run(command, env=engine_variables(tmp_path), capture_output=True, text=True, check=True, timeout=120).stdout
    release = json.loads(made)["release"]
    table = REPOSITORY / "operator" / "specserver" / "build" / "options" / f"{release}.json"
    assert json.loads(made) == json.loads(table.read_text())
