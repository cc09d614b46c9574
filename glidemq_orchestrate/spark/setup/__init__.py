"""What a driver of Spark needs before it starts: settings, a master, Java, temporary folders."""
