"""The TOML of the guide is what the program reads."""

import re
from pathlib import Path

from dure import config
from dure.config.setting import of_file

GUIDE = Path(__file__).parents[2] / "docs" / "guide.md"


def test_the_guides_files_are_right(tmp_path: Path) -> None:
    study, setting = re.findall(r"^```toml\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.M | re.S)
    path = tmp_path / "study.toml"
    path.write_text(study, encoding="utf-8")
    assert config.build(config.load(path)).keywords["lost_uploads"] == 0.05
    # What is commented out is right too, one method at a time.
    commented = re.findall(r"^# (name|rho|proximal|private|edges) = (.*?)(?:\s{2,}#.*)?$", study, re.M)
    methods: list[list[str]] = []
    for key, value in commented:
        if key == "name":
            methods.append([])
        methods[-1].append(f"{key} = {value.split('      #')[0]}")
    assert len(methods) == 4
    for lines in methods:
        text = re.sub(r"\[algorithm\].*?\n\n", "[algorithm]\n" + "\n".join(lines) + "\n\n", study, flags=re.S)
        path.write_text(text, encoding="utf-8")
        assert config.build(config.load(path)).config["algorithm"]["name"] in lines[0]
    path.write_text(setting, encoding="utf-8")
    assert of_file(path, {})[0].clients == 100_000
