"""Where published data lie: folders of versions, and tables of Apache Iceberg."""
