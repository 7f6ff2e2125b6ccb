"""Optional behaviour of a run, each in a callback."""

from vagentrl.callbacks.boards import Boards
from vagentrl.callbacks.check_monitors import CheckMonitors
from vagentrl.callbacks.checkpoint_folders import CheckpointFolders
from vagentrl.callbacks.critic_warmup import CriticWarmup
from vagentrl.callbacks.echo_trap import EchoTrapMonitor
from vagentrl.callbacks.engine_agreement import EngineAgreement
from vagentrl.callbacks.evaluate_at_ends import EvaluateAtEnds
from vagentrl.callbacks.kl_control import KLControl
from vagentrl.callbacks.newest_checkpoint import NewestCheckpoint
from vagentrl.callbacks.progress import IterationProgress
from vagentrl.callbacks.rank_watch import RankWatch
from vagentrl.callbacks.run_summary import RunSummary
from vagentrl.callbacks.self_prediction_reward import SelfPredictionReward
from vagentrl.callbacks.trajectory_pictures import TrajectoryPictures
from vagentrl.callbacks.trajectory_store import TrajectoryStore
from vagentrl.callbacks.world_model_reward import WorldModelReward
from vagentrl.modules.callback import AgentCallback

__all__ = [
    "AgentCallback",
    "Boards",
    "CheckMonitors",
    "CheckpointFolders",
    "CriticWarmup",
    "EchoTrapMonitor",
    "EngineAgreement",
    "EvaluateAtEnds",
    "IterationProgress",
    "KLControl",
    "NewestCheckpoint",
    "RankWatch",
    "RunSummary",
    "SelfPredictionReward",
    "TrajectoryPictures",
    "TrajectoryStore",
    "WorldModelReward",
]
