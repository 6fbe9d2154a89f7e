"""For which sizes is a graph asked of torch.export, and with which does it trace the model?"""

from ..recipe.entry import EntryJob


def dynamic_dims(job: EntryJob) -> dict[str, tuple[int, int]]:
    """The range of each dimension that is exported symbolically: all but those with one size and no padding."""
    ranges = {}
    for index, dim in enumerate(job.dims()):
        sizes = {bucket[index] for bucket in job.bucket_sizes()}
        low, high = min(sizes), max(sizes)
        if low < high:
            ranges[dim] = (low, high)
        elif job.paddable(dim) and high > job.least(dim):
            ranges[dim] = (max(job.least(dim), high // 2), high)
    return ranges


def example_sizes(job: EntryJob) -> dict[str, int]:
    """A size for each dimension, different ones where possible: equal sizes would pass for the same dimension."""
    chosen: dict[str, int] = {}
    ranges = dynamic_dims(job)
    fixed = {size for item in job.inputs.values() for size in item.shape if isinstance(size, int)}
    for index, dim in enumerate(job.dims()):
        buckets = sorted({bucket[index] for bucket in job.bucket_sizes()}, reverse=True)
        if dim not in ranges:
            chosen[dim] = buckets[0]
            continue
        low, high = ranges[dim]
        taken = fixed | set(chosen.values()) | {0, 1}
        candidates = [*buckets, *range(high, low - 1, -1)]
        chosen[dim] = next((size for size in candidates if size not in taken), buckets[0])
    return chosen
