"""The foundation of all other rooms: rules for names, clocks, imports at run time, error and log texts."""
