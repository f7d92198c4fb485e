"""The paper's tables and figures, one command each; `registry.ITEMS` lists them all."""
