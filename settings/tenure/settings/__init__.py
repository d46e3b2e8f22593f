"""How a process is told what it must know: environment, configuration file, files of secrets."""
