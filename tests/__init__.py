"""The tests. This file keeps a package of the same name that a library installs out of the way."""
