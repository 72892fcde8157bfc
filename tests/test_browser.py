"""What a test does where there is no browser: it may be left out on a desk, and never in CI."""

import browser
import pytest


@pytest.mark.parametrize(("ci", "end"), [("true", pytest.fail), ("", pytest.skip)])
def test_a_missing_browser_fails_in_ci_and_skips_elsewhere(monkeypatch, tmp_path, ci, end):
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(end.Exception, match="apt-get install -y chromium"):
        browser.chromium()
