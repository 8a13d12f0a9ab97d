"""The one exception for what a user can mend: bad files, nets, recipes, arguments."""


class UserError(Exception):
    """One line: names the file, offset, tensor or key, what was found and what was expected."""
