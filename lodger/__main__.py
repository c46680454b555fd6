"""`python -m lodger`: what `./ops` starts."""

import atexit
import gc
import sys

# A start makes some 100,000 objects that stay. To look through them for garbage, after every 700 of them and once more at the
# end, takes 0.15 s; a run that goes on for hours still looks now and then.
gc.set_threshold(500_000)
atexit.register(gc.freeze)
if sys.dont_write_bytecode and sys.prefix != sys.base_prefix:
    # Who wants no compiled modules beside the sources has them in the virtual environment: compiling takes 0.2 s.
    sys.dont_write_bytecode, sys.pycache_prefix = False, f"{sys.prefix}/bytecode"

from lodger.tasks.program import main  # noqa: E402  what is above is about how it is loaded

main()
