"""What the plugin does not control: the engine serves as SGLang made it, and says why in read-back, metrics and log.

STANDALONE is the refused way to start that a CPU can serve; all of them are in tests/unit/plugin/test_arming.py.
"""

from __future__ import annotations

from pathlib import Path

from tests.engine.conftest import PROMPTS, TOKENS, PlainRun, StartServer
from tests.engine.server import Config

STANDALONE = "speculative algorithm STANDALONE is not supported (supported: EAGLE, EAGLE3)"


def test_a_draft_model_of_its_own(make_server: StartServer, models: Path, plain_random: PlainRun) -> None:
    """STANDALONE: the model drafts for itself, so that it speculates for sure."""
    target = models / "random" / "target"
    arguments = ("--speculative-draft-model-path", str(target))
    with make_server(Config(models / "random", "STANDALONE", adaptive=False, arguments=arguments)) as server:
        assert server.generate_all(PROMPTS, TOKENS, concurrency=8) == plain_random.outputs
        state = server.state()
        assert (state["armed"], state["reason"], state["cause"]) == (False, STANDALONE, "Algorithm")
        assert state["rounds"].keys() == {"3"}, "as it was started"
        assert server.put_policy().body == {"error": f"not armed: {STANDALONE}", "field": "armed"}
        metrics = server.metrics()
        assert metrics["specserver_armed"] == 0
        assert metrics['specserver_unarmed{cause="Algorithm"}'] == 1
        assert f"not armed on rank tp0: {STANDALONE}" in server.log()
