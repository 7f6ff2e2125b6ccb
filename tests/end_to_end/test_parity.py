"""Every strategy learns what a single process would, whatever is trained on what.

Adam divides a gradient by its size, so a rounding error of a tiny gradient can move a weight by
more than its own size; with a learning rate of 1e-3 a whole step is 1e-3.
"""

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import vagentrl
from tests import runs
from tests.end_to_end import parity
from tests.processes import run_ranks
from vagentrl.errors import VagentError
from vagentrl.models.lora import has_adapter, merge_adapter

pytestmark = pytest.mark.timeout(900)
NEEDS_DEEPSPEED = pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs deepspeed")
STRATEGIES = [
    pytest.param(name, marks=NEEDS_DEEPSPEED if name.startswith("zero") else ())
    for name in parity.STRATEGIES
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parity")


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, dict[str, Any]]:
    """The results of every case in a single process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return {case: parity.fit(case) for case in parity.CASES}


@pytest.fixture(scope="module")
def ranks(folder: Path) -> Any:
    """The results of every case on both ranks of a strategy, run when they are first asked for."""
    known: dict[str, list[dict[str, Any]]] = {}

    def of(strategy: str) -> list[dict[str, Any]]:
        if strategy not in known:
            run_ranks("tests.end_to_end.parity", folder, strategy)
            known[strategy] = [torch.load(folder / f"{strategy}_{rank}.pt") for rank in (0, 1)]
        return known[strategy]

    return of


@pytest.mark.parametrize("case", parity.CASES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_ranks_learn_what_one_process_does(
    strategy: str, case: str, ranks: Any, alone: dict[str, dict[str, Any]]
):
    wanted = alone[case]
    for rank in ranks(strategy):
        found = rank[case]
        assert found["losses"] == pytest.approx(wanted["losses"], rel=1e-3, abs=1e-5)
        if not strategy.startswith("zero"):  # which shows none: the weights show their effect
            assert found["gradients"].keys() >= wanted["gradients"].keys() != set()
            for name, gradient in wanted["gradients"].items():
                torch.testing.assert_close(found["gradients"][name], gradient, rtol=1e-4, atol=1e-6)
        assert found["weights"].keys() == wanted["weights"].keys()
        for name, weight in wanted["weights"].items():
            torch.testing.assert_close(found["weights"][name], weight, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_ranks_of_a_strategy_hold_the_same_weights_bit_by_bit(strategy: str, ranks: Any):
    for case in parity.CASES:
        first, second = (rank[case]["weights"] for rank in ranks(strategy))
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_rank_of_fsdp2_holds_its_half(ranks: Any):
    for rank in ranks("fsdp2"):
        assert rank[parity.IMAGES]["share"] == pytest.approx(0.5, abs=0.02)


def test_an_engine_gets_whole_weights_of_fsdp2_and_may_call_the_policy(ranks: Any):
    first, second = (rank[parity.IMAGES] for rank in ranks("fsdp2"))
    assert torch.equal(first["logits"], second["logits"])
    for name, weight in first["synced"].items():
        assert torch.equal(weight, first["weights"][f"actor.policy.{name}"])


def test_a_run_of_fsdp2_goes_on_bit_by_bit_where_it_was(ranks: Any):
    for rank in ranks("fsdp2"):
        whole, resumed = rank[parity.LORA]["weights"], rank["resumed"]["weights"]
        assert not all(torch.equal(rank["half"]["weights"][name], whole[name]) for name in whole)
        assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_another_number_of_ranks_goes_on_from_a_checkpoint_of_fsdp2(ranks: Any, folder: Path):
    saved = ranks("fsdp2")[0]["half"]["checkpoint"]
    one = ("--trainer.devices=1", "--ckpt_path", saved)
    run_ranks("tests.end_to_end.parity", folder, "fsdp2", *one, count=1)
    found = torch.load(folder / "resumed_0.pt")["weights"]
    for name, weight in ranks("fsdp2")[0][parity.LORA]["weights"].items():
        torch.testing.assert_close(found[name], weight, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("case", [parity.IMAGES, parity.LORA])
def test_a_checkpoint_of_fsdp2_is_a_policy_without_its_ranks(case: str, ranks: Any, tmp_path: Path):
    wanted = ranks("fsdp2")[0][case]
    base = runs.checkpoint(images=case != parity.LORA)  # that of the ranks ended with them
    model = vagentrl.load_policy(wanted["checkpoint"], policy=base).model
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, wanted["weights"][f"actor.policy.{name}"])
    folder = vagentrl.export_policy(wanted["checkpoint"], tmp_path / "mine", policy=base)
    if has_adapter(model):
        merge_adapter(model)
    exported = vagentrl.load_policy(folder).model.state_dict()
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(exported[name], weight)


def test_a_checkpoint_of_fsdp2_without_a_shard_is_refused(ranks: Any, tmp_path: Path):
    broken = tmp_path / "last.ckpt"
    shutil.copytree(ranks("fsdp2")[0]["half"]["checkpoint"], broken)
    (broken / "__1_0.distcp").unlink()
    with pytest.raises(VagentError, match=r"__1_0.distcp is missing"):
        vagentrl.load_policy(broken)
