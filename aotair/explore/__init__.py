"""Artifacts in Google's Model Explorer: `model-explorer ARTIFACT/program.msgpack --extensions=aotair.explore`."""
