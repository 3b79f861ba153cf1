"""What the command line takes: nothing here imports a command, so that help and a wrong flag are quick."""
