"""The campaign of `benchmarks/serving_campaign.py` in small."""

from __future__ import annotations

import pytest

from support.serve.campaign import beside, quantile, serving


@pytest.mark.parametrize("context", [2048, 1 << 20], ids=["refused by bytes", "read to tokens"])
def test_a_client_does_not_wait_for_silent_connections_and_long_prompts(context):
    """It waited for 24 s and more. How much slower it becomes depends on the machine: that it does not wait for a long
    text to be read is what holds anywhere."""
    with serving(context) as netloc:
        calm, loaded = beside(netloc, 2.0, silent=1100, long=4, megabytes=7.5)
    assert quantile(loaded, 0.5) < quantile(calm, 0.99) + 1 and loaded[-1] < calm[-1] + 5
