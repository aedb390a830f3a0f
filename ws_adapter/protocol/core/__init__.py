"""Common parts of every protocol: actions, signals, settings, units and answers."""
