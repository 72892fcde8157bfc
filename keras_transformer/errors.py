"""The one exception for what a user can put right."""


class InputError(ValueError):
    """Bad input: a file, line, key or value that the user can correct.

    The message is one line that names the culprit, says what was expected and ends with
    "Received: ...". The command line prints it and exits with code 2.
    """
