"""SGLang and its router: everything that is said in their words."""
