"""`python -m lodger`: what `./ops` starts."""

from lodger.tasks.program import main

main()
