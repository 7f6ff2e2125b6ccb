"""The command line: `main` finds the command, one module runs each."""
