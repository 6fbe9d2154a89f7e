"""Where the time of a load, a call and a replay goes: measured when somebody asks, and nowhere in a call otherwise."""
