"""How SGLang divides the memory of a GPU: the arithmetic (``sizing``), and what other settings would give (``advice``)."""
