"""What every other room stands on: rules for names, clocks, imports at run time, texts of errors and logs."""
