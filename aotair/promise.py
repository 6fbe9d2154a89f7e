"""What an artifact will take of a device, and whether that is within the recipe's budget."""

from aotair_runtime.format.schema import Program
from aotair_runtime.memory.promise import Promise, Terms, promise, refuse_beyond

from .recipe.target_part import TargetPart


def promised(program: Program) -> Promise:
    """What a load takes on the device that the program is for, with the options it was built with."""
    options = program.options
    return promise(
        program,
        Terms(program.requirements.device, options.disable_mempool_reuse_in_same_fx, options.enable_output_clone),
    )


def refuse_over_budget(program: Program, needs: TargetPart, where: str) -> None:
    """Raises MemoryBudgetError where more is promised than the recipe's budget; a share of a device whose size the
    recipe does not say is checked when the artifact is loaded."""
    budget, size = needs.memory_budget, needs.device_memory
    whose = "target.memory_budget"
    if isinstance(budget, float):
        whose, budget = f"{budget:.0%} of target.device_memory", None if size is None else int(budget * size)
    elif budget is None:
        whose, budget = "target.device_memory", size
    if budget is not None:
        refuse_beyond(promised(program), budget, whose, where)
