"""Customer support with dual control: the agent has the records, the customer has the telephone."""

from vagentrl_envs.support.chat_user import ChatUser
from vagentrl_envs.support.environment import CustomerSupport
from vagentrl_envs.support.scripted_user import ScriptedUser
from vagentrl_envs.support.talk import User

__all__ = ["ChatUser", "CustomerSupport", "ScriptedUser", "User"]
