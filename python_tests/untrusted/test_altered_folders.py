"""The campaign of altered JSON of `benchmarks/serving_campaign.py` in small."""

from __future__ import annotations

import itertools
import random

from support.hostile.altered_folders import alterations, tried, write_folder


def test_a_folder_whose_json_was_altered_opens_or_is_refused_in_one_line(tmp_path):
    folder = write_folder(tmp_path / "model")
    assert tried(folder, "config.json", (folder / "config.json").read_text()) == "opened"
    wrong, count = [], 60
    for name, what, text in itertools.islice(alterations(folder, random.Random(3)), count):
        try:
            tried(folder, name, text)
        except Exception as e:
            wrong.append(f"{name} {what}: {type(e).__name__}: {str(e)[:200]}")
    assert not wrong
