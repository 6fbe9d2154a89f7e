"""Where do wrong numbers begin: at the export, a pass, an instruction, a kernel, an order, a list that went stale?"""
