"""What did the fusion rules leave alone, and why? By the calls of an artifact, as a file for Model Explorer."""

import json
from collections import defaultdict

from aotair_runtime.format.debug_data import DebugData
from aotair_runtime.format.schema import Program

from ..report.explain import Explained
from .ids import graph_id, places


def misses(explained: Explained, program: Program, debug: DebugData) -> str:
    """Node data in JSON: at each call whose line of the model's code a rule looked at and left alone, the rules with
    their reasons. `explained` is of the recipe that the program was built from."""
    left: dict[str, dict[str, None]] = defaultdict(dict)
    for rule, found in explained.as_dict().items():
        for miss in found["left"]:
            if miss["source"]:
                left[miss["source"]][f"{rule}: {miss['reason']}"] = None
    data = {}
    for entry in program.entry_points:
        for bucket in entry.buckets:
            lines = {place: debug.of(bucket.code[place]).line for place in places(program, bucket)}
            results = {str(n): {"value": "; ".join(left[line])} for n, line in lines.items() if line in left}
            data[graph_id(entry, bucket)] = {"results": results, "name": "fusion misses"}
    return json.dumps(data, indent=1)
