"""A web shop in text: the environment, its catalogue and its reward."""

from vagentrl_envs.webshop.catalogue import Catalogue, Instruction, Product, read_catalogue
from vagentrl_envs.webshop.environment import WebShop
from vagentrl_envs.webshop.pages import Choice, Page, Shop
from vagentrl_envs.webshop.reward import Goal, Score, score

__all__ = [
    "Catalogue",
    "Choice",
    "Goal",
    "Instruction",
    "Page",
    "Product",
    "Score",
    "Shop",
    "WebShop",
    "read_catalogue",
    "score",
]
