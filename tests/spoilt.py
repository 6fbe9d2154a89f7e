"""Data that an enemy would write: anything that msgpack can say, at any place of what was there."""

from hypothesis import strategies as st


def plain(leaves: int = 30) -> st.SearchStrategy:
    """Anything, of about so many values at the most."""
    return st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.floats()
        | st.text(max_size=8)
        | st.binary(max_size=8),
        lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=leaves,
    )


def spoil(data: st.DataObject, at: list, values: st.SearchStrategy) -> None:
    """Walk to a random place of nested lists, and put something else there."""
    while True:
        index = data.draw(st.integers(0, len(at) - 1))
        if isinstance(at[index], list) and at[index] and data.draw(st.integers(0, 9)):
            at = at[index]
            continue
        at[index] = data.draw(values)
        return
