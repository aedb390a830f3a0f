"""What every protocol is made of: actions, signals, settings, units and answers."""
