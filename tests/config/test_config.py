import json
from pathlib import Path

import pytest

from dure import config
from dure.config.messages import keys_at
from dure.config.signature import arguments
from dure.errors import ConfigError

TEXT = """
rounds = 5
[data]
name = "digits"
[model]
name = "softmax_regression"
"""


def written(tmp_path: Path, text: str = TEXT) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_and_the_name_of_the_file(tmp_path: Path) -> None:
    plan = config.load(written(tmp_path))
    assert (plan.name, plan.seed, plan.rounds) == ("study", 0, 5)
    assert plan.algorithm.name == "FedAvg"
    assert plan.clients.batch_size == 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("clients.epoch=5", r"clients\.epoch = 5: there's no such key\. Did you mean 'epochs'\?"),
        ("sede=3", r"sede = 3: .*Did you mean 'seed'\?"),
        ("zzz=3", r"zzz = 3: .*Valid names: aggregator, algorithm, attack, clients, data"),
        ("clients.fraction=1.5", r"clients\.fraction = 1\.5: must be less than or equal to 1"),
        ("clients.fraction=0", r"clients\.fraction = 0: must be greater than 0"),
        ("clients.batch_size=0", r"clients\.batch_size = 0: must be an integer of at least 1"),
        ("clients.batch_size=2.5", r"clients\.batch_size = 2\.5: must be an integer"),
        ("rounds=0", r"rounds = 0: must be greater than or equal to 1"),
        ("rounds='ten'", r"rounds = 'ten': must be an integer"),
        ("rounds=true", r"rounds = True: must be an integer"),
        ("seed=-1", r"seed = -1: must be greater than or equal to 0"),
        ("clients.weighting=example", r"must be 'examples' or 'uniform'\. Did you mean 'examples'\?"),
        ("optimizer.learning_rate=nan", r"optimizer\.learning_rate = nan: must be"),
        ("optimizer.learning_rate=inf", r"optimizer\.learning_rate = inf: must be"),
        ("optimizer.nesterov=true", r"nesterov = true needs momentum"),
        ("data=digits", r"data = 'digits': must be a table, \[data\]"),
        ("task.metrics=['acc']", r"task\.metrics\.0 = 'acc': must be 'accuracy'"),
        ("clients={epochs=1, steps=2}", r"clients: epochs and steps are two ways"),
        ("clients={fraction=0.1, per_round=2}", r"clients: fraction and per_round are two ways"),
        ("clients={sampler='poisson'}", r"clients: sampler = 'poisson' needs fraction"),
        ("optimizer={name='adam', momentum=0.9}", r"optimizer: adam has no momentum; it takes"),
    ],
)
def test_every_error_shows_the_key_the_value_and_what_is_allowed(
    tmp_path: Path, change: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        config.load(written(tmp_path), [change])
    assert "study.toml" in str(caught.value)


def test_all_problems_are_listed_at_once(tmp_path: Path) -> None:
    text = TEXT.replace("rounds = 5", "round = 5") + "[clients]\nepoch = 2\nfraction = 2.0\n"
    with pytest.raises(ConfigError, match="4 problems") as caught:
        config.load(written(tmp_path, text))
    assert "rounds: missing" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clients.fraction", "write --set a.b=value"),
        ("=3", "write --set a.b=value"),
        ("a..b=3", "write --set a.b=value"),
        ("clients.fraction=[1", "is not a TOML value"),
        ("rounds.x=1", "rounds is a value, not a table"),
    ],
)
def test_overrides_that_cannot_be_read(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config.load(written(tmp_path), [text])


def test_overrides_are_toml_values_and_bare_words_are_texts(tmp_path: Path) -> None:
    plan = config.load(
        written(tmp_path),
        [
            "clients.fraction=0.5",
            "name=my-study",
            "clients.batch_size=inf",
            "optimizer={momentum=0.9}",
            "data.n=[1, 2]",
        ],
    )
    assert plan.clients.fraction == 0.5
    assert plan.name == "my-study"
    assert plan.clients.batch_size == "all"
    assert plan.optimizer.momentum == 0.9
    assert plan.data.arguments == {"n": [1, 2]}


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"There is no file .*dure new NAME"):
        config.load(tmp_path / "nothing.toml")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        config.load(written(tmp_path, "rounds = "))
    with pytest.raises(ConfigError, match="Cannot read"):
        config.load(tmp_path)


def test_the_resolved_configuration_is_a_fixed_point(tmp_path: Path) -> None:
    plan = config.load(written(tmp_path), ["clients.fraction=0.5", "data.test_fraction=0.2"])
    saved = tmp_path / "config.json"
    saved.write_text(json.dumps(plan.resolved()))
    assert config.load(saved).resolved() == plan.resolved()


def test_keys_of_nested_sections() -> None:
    assert "epochs" in keys_at(config.Study, ["clients"])
    assert keys_at(config.Study, ["data", "split"]) == ["stratify", "test_fraction"]


def example(
    n: int, *, alpha: float = 0.5, path: str | None = None, hidden: tuple[int, ...] = (3,), seed: int = 0
):
    """A function as loaders and partitioners are."""


def test_arguments_are_checked_against_the_signature() -> None:
    values, wrong = arguments(example, {"n": 3, "hidden": [1, 2]}, "data")
    assert not wrong
    assert values == {"n": 3, "alpha": 0.5, "path": None, "hidden": (1, 2), "seed": 0}
    _, wrong = arguments(example, {"alpah": 1.0, "path": 3}, "data.partition", skip={"seed"})
    assert sorted(wrong) == [
        "data.partition.alpah = 1.0: there's no such key. Did you mean 'alpha'?",
        "data.partition.n: missing. Add it.",
        "data.partition.path = 3: must be a string.",
    ]


def test_every_name_in_the_tables_means_something() -> None:
    from dure.config import tables

    for table in (tables.DATA, tables.PARTITIONS, tables.MODELS):
        for place in table.values():
            assert callable(tables.imported(place)), place
    assert set(tables.OPTIMIZER_KEYS) == {"sgd", "adam", "adamw", "adagrad", "rmsprop", "yogi"}


def test_the_catalogue_of_data_and_the_table_agree() -> None:
    from dure.config import tables
    from dure.data import CATALOGUE

    assert set(tables.DATA) == {entry.name for entry in CATALOGUE if "Python only" not in entry.description}


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        (["clients.sampler=poisson", "clients.fraction=0.3"], "Poisson"),
        (["clients.sampler=weighted", "clients.per_round=3"], "Weighted"),
    ],
)
def test_samplers_by_name(tmp_path: Path, changes: list[str], kind: str) -> None:
    built = config.build(config.load(written(tmp_path), changes))
    assert type(built.keywords["sampler"]).__name__ == kind


def test_what_is_built_follows_from_the_data(tmp_path: Path) -> None:
    built = config.build(config.load(written(tmp_path), ["clients.batch_size=all", "evaluation.every=0"]))
    assert built.config["model"] == {"name": "softmax_regression", "inputs": 64, "classes": 10}
    assert built.config["task"] == {"name": "classification", "metrics": ["accuracy"]}
    assert built.keywords["batch_size"] == float("inf")
    assert built.keywords["evaluate_every"] is None
    again = config.study(built.config)
    assert config.build(again).config == built.config


def test_dealt_out_data_keep_their_names_and_classes(tmp_path: Path) -> None:
    change = "data.partition={kind='shards', clients=10, per_client=2}"
    built = config.build(config.load(written(tmp_path), [change]))
    assert built.data.clients == 10
    assert (built.data.classes, built.data.name) == (10, "digits")
    assert built.data.licence
    assert (built.data.class_counts() > 0).sum(axis=1).max() <= 4


@pytest.mark.parametrize(
    ("model", "task"), [("logistic", "binary"), ("softmax_regression", "classification")]
)
def test_the_heart_data_and_a_model_that_suits(tmp_path: Path, model: str, task: str) -> None:
    change = ["data.name=heart", f"model.name={model}", "task.metrics=['accuracy']"]
    built = config.build(config.load(written(tmp_path), change))
    assert built.task.name == task
    assert built.data.clients == 4


@pytest.mark.parametrize("optimizer", ["{name='adam', learning_rate=0.01}", "{momentum=0.9, nesterov=true}"])
def test_optimizers_by_name(tmp_path: Path, optimizer: str) -> None:
    built = config.build(config.load(written(tmp_path), [f"optimizer={optimizer}"]))
    assert built.keywords["optimizer"].transformation()
