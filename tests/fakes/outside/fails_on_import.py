"""A module that cannot be imported."""

import a_module_that_nobody_has  # noqa: F401 - it fails before anybody could use it
