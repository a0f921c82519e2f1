"""Which prompts get K and V alone in a zero phase."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from specserver.plugin.zero.prompt import fits


@pytest.fixture
def spec(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """SGLang's speculative arguments."""
    values = SimpleNamespace(speculative_use_rejection_sampling=False)
    module = ModuleType("sglang.srt.runtime_context")
    module.get_spec = lambda: values  # type: ignore[attr-defined]
    for name in ("sglang", "sglang.srt"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return values


def extend(**changes: Any) -> SimpleNamespace:
    fields: dict[str, Any] = {
        "forward_mode": SimpleNamespace(is_extend=lambda: True), "extend_lens": [3, 4], "prefix_lens": [0, 8],
        "reqs": [SimpleNamespace(multimodal_inputs=None)] * 2,
    }  # fmt: skip
    return SimpleNamespace(**(fields | changes))


@pytest.mark.usefixtures("spec")
def test_text_fits() -> None:
    assert fits(extend(), None)


@pytest.mark.usefixtures("spec")
@pytest.mark.parametrize(
    ("batch", "embeddings"),
    [
        (extend(), "image"),
        (extend(reqs=[SimpleNamespace(multimodal_inputs="image")]), None),
        (extend(forward_mode=SimpleNamespace(is_extend=lambda: False)), None),
        (extend(extend_lens="on the device"), None),
        (extend(prefix_lens="on the device"), None),
    ],
    ids=["embedded image", "image among the requests", "idle", "lengths on the device", "prefixes on the device"],
)
def test_the_rest_does_not(batch: SimpleNamespace, embeddings: str | None) -> None:
    assert not fits(batch, embeddings)


def test_a_draft_that_is_sampled_from_is_run(spec: SimpleNamespace) -> None:
    spec.speculative_use_rejection_sampling = True
    assert not fits(extend(), None)
