"""Small ops in one call: `libaotair_kernels.so` beside this file, which aotair's runtime finds by itself."""
