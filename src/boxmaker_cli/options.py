"""What options of both programs have in common; not the options themselves."""

from __future__ import annotations

import os

import click


class SomePath(click.Path):
    """A path that is not empty: an empty one, as an unset variable leaves it, would be the current folder."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        if value == "":
            self.fail("it is empty: name a path", param, ctx)
        return super().convert(value, param, ctx)
