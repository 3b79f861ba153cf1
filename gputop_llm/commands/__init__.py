"""The subcommands, one module each; each is imported only when it is asked for."""
