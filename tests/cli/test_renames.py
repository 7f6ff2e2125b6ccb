"""An old name is refused with the new one, and nothing can be imported by it."""

from importlib import import_module
from pydoc import locate

import pytest

from tests import runs
from vagentrl.cli.main import main
from vagentrl.cli.renames import RENAMED, find_old_path, new_name

EXAMPLES = {
    "vagentrl.feedback.FeedbackModel": "vagentrl.hints.HintModel",
    "vagentrl.feedback.base.FeedbackModel": "vagentrl.hints.HintModel",
    "vagentrl.feedback.EndpointFeedback": "vagentrl.hints.ChatHintModel",
    "vagentrl.feedback.ScriptedFeedback": "vagentrl.hints.ScriptedHintModel",
    "vagentrl.feedback.VerbalFeedback": "vagentrl.hints.HintedEnvironment",
    "vagentrl.feedback.Schedule": "vagentrl.schedules.Schedule",
    "vagentrl.hints.Schedule": "vagentrl.schedules.Schedule",
    "vagentrl.judging.Audit": "vagentrl.claims.Audit",
    "vagentrl.judging.claim_filters.Length": "vagentrl.claims.claim_filters.Length",
    "vagentrl.judge.Judge": "vagentrl.claims.judge.Judge",
    "vagentrl.engine.Sampling": "vagentrl.engines.base.Sampling",
    "vagentrl.engines.OpenAIChat": "vagentrl.chat.OpenAIChat",
    "vagentrl.engines.openai.OpenAIChat": "vagentrl.chat.openai.OpenAIChat",
    "vagentrl.engines.endpoint.Prices": "vagentrl.chat.endpoint.Prices",
    "vagentrl.data.RolloutDataModule": "vagentrl.datamodule.RolloutDataModule",
    "vagentrl.collection.EpisodeSource": "vagentrl.rollout.source.EpisodeSource",
    "vagentrl.checkpoints.AtomicCheckpointIO": "vagentrl.modules.checkpoint_io.AtomicCheckpointIO",
    "vagentrl.commands.VagentCLI": "vagentrl.cli.trainer.VagentCLI",
    "vagentrl.parser.Parser": "vagentrl.cli.parser.Parser",
    "vagentrl.doctor.machine": "vagentrl.cli.doctor.machine",
    "vagentrl.memory.memory_plan": "vagentrl.cli.memory.memory_plan",
    "vagentrl.warmstart.Stage": "vagentrl.cli.warmstart.Stage",
    "VerbalFeedback": "vagentrl.hints.HintedEnvironment",
}


@pytest.mark.parametrize("old", EXAMPLES)
def test_an_old_name_has_a_new_one_that_exists(old: str):
    assert new_name(old) == EXAMPLES[old]
    assert locate(EXAMPLES[old]) is not None
    if "." in old:
        assert find_old_path(f"Import path {old} is wrong") == old


@pytest.mark.parametrize("old", RENAMED)
def test_every_name_in_the_table_exists_and_cannot_be_imported_by_the_old_one(old: str):
    assert new_name(old) == RENAMED[old]
    assert locate(RENAMED[old]) is not None
    with pytest.raises((ModuleNotFoundError, AttributeError)):
        module, _, name = old.rpartition(".")
        getattr(import_module(module), name)
    if old[len("vagentrl.") :].islower():
        with pytest.raises(ModuleNotFoundError):
            import_module(old)


@pytest.mark.parametrize(
    "name", ["vagentrl.datamodule", "vagentrl.engines.base", "my.engine.Engine"]
)
def test_other_names_stay_as_they_are(name: str):
    assert new_name(name) is None
    assert find_old_path(name) is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ["--data.env=vagentrl.feedback.VerbalFeedback"],
            "data.env: vagentrl.feedback.VerbalFeedback is now called "
            "vagentrl.hints.HintedEnvironment",
        ),
        (
            ["--trainer.callbacks+=vagentrl.judging.Audit"],
            "trainer.callbacks: vagentrl.judging.Audit is now called vagentrl.claims.Audit",
        ),
        (
            ["--data.engine=vagentrl.engines.OpenAIChat"],
            "data.engine: vagentrl.engines.OpenAIChat is now called vagentrl.chat.OpenAIChat",
        ),
        (
            ["--data.env=VerbalFeedback"],
            "data.env: VerbalFeedback is now called vagentrl.hints.HintedEnvironment",
        ),
        (
            ["--data.env=vagentrl.hints.HintedEnvironment", "--data.env.feedback=x"],
            "there is no setting data.env.init_args.feedback; it is now called hint_model",
        ),
    ],
    ids=["environment", "list", "attribute", "short", "setting"],
)
def test_an_old_name_in_a_configuration_is_refused_with_the_new_one(
    settings: list[str], said: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit):
        main(["fit", *runs.arguments(*settings)])
    assert capsys.readouterr().err == f"vagentrl: {said}\n"
