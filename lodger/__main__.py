"""`python -m lodger`: what `./ops` starts."""

import gc
import sys

# A start makes some 200,000 objects that stay: to look through them for garbage after every 700 takes 0.07 s.
gc.set_threshold(500_000)
if sys.dont_write_bytecode and sys.prefix != sys.base_prefix:
    # Who wants no compiled modules beside the sources has them in the virtual environment: compiling takes 0.2 s.
    sys.dont_write_bytecode, sys.pycache_prefix = False, f"{sys.prefix}/bytecode"

from lodger.tasks.program import main  # noqa: E402  what is above is about how it is loaded

main()
