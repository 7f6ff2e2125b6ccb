"""Checks of discounts."""

from vagentrl.errors import ConfigError


def check_discounts(**discounts: float) -> None:
    """Raise a `ConfigError` that names the discount which is not between 0 and 1."""
    for name, value in discounts.items():
        if not 0 <= value <= 1:
            raise ConfigError(
                f"{name} is {value}, but a discount lies between 0 and 1; "
                "1 counts the whole future, 0 none of it"
            )
