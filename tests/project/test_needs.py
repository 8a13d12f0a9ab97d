"""A test whose tool is missing is skipped, and fails where everything is required."""

import pytest
from needs import require


def test_what_is_missing_skips_or_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NNUE_REQUIRE_ALL", raising=False)
    require(None)
    with pytest.raises(pytest.skip.Exception, match="no hammer"):
        require("no hammer")
    monkeypatch.setenv("NNUE_REQUIRE_ALL", "1")
    require(None)
    with pytest.raises(pytest.fail.Exception, match=r"no hammer \(NNUE_REQUIRE_ALL is set\)"):
        require("no hammer")
