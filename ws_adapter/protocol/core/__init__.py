"""What every protocol is made of: actions, signals, configuration, units and answers."""
