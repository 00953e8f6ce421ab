"""Commands: what to type for another budget, or for the same result again."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from layermerge.errors import RecipeError
from layermerge.runs.recipe import RunRecipe, read_recipe
from layermerge.runs.records import Report
from layermerge.tables.bounds import Objective


def known_recipe(file: Path) -> RunRecipe | None:
    """The recipe of a run, where it can be read on this machine."""
    try:
        return read_recipe(file) if file.is_file() else None
    except RecipeError:
        return None


@dataclass(frozen=True)
class Commands:
    """The commands of one run. Where its recipe names no model, the run was started from Python, and so is the next one; where
    the recipe cannot be read here (it may name a runtime of another machine), commands say no more than it needs."""

    directory: Path
    recipe_file: Path
    recipe: RunRecipe | None

    def for_budget(self, menu: str, objective: Objective, budget: str) -> str:
        """Continues in the run's directory, with the tables that are there."""
        if not self._named:
            return self._in_python(menu, budget, self.directory)
        return self._line("", self.directory, budget, self._how(menu, objective))

    def again(self, report: Report, menu: str, objective: Objective) -> str:
        """Makes a result again, in another directory."""
        place = self.directory.with_name(f"{self.directory.name}-again")
        if not self._named:
            return self._in_python(menu, report.budget, place)
        how = self._how(menu, objective)
        if self.recipe is not None and report.label != self.recipe.label:
            how += f" --label {shlex.quote(report.label)}"
        if self.recipe is not None and report.epochs == 0.0 and self.recipe.finetune is not None:
            how += " --finetune none"
        return self._line(f" {shlex.quote(str(self.recipe_file))}", place, report.budget, how)

    @property
    def _named(self) -> bool:
        if self.recipe is None:
            return self.recipe_file.is_file()
        return self.recipe.model is not None and self.recipe.data is not None

    def _how(self, menu: str, objective: Objective) -> str:
        if self.recipe is None:
            return "" if menu == "layermerge" else f" --method {shlex.quote(menu)}"
        words = "" if menu == self.recipe.method else f" --method {shlex.quote(menu)}"
        words += "" if objective == self.recipe.objective else f" --set objective={objective}"
        return words + (" --allow-python" if str(self.recipe.model).startswith("python:") else "")

    def _line(self, recipe: str, place: Path, budget: str, how: str) -> str:
        return f"layermerge compress{recipe} --run-dir {shlex.quote(str(place))} --budget {shlex.quote(budget)}{how}"

    def _in_python(self, menu: str, budget: str, place: Path) -> str:
        method = "" if menu == "layermerge" else f", settings=Settings(method={menu!r})"
        return f"layermerge.compress(model, task, budget={budget!r}, run_dir={str(place)!r}{method})"
