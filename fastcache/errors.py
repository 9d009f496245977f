"""The one exception meant for the person at the keyboard."""


class UserError(ValueError):
    """Bad input. The message says what happened, what was expected and what to type; entry points print it, exit 1."""
