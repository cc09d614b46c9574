"""Tables of Apache Iceberg as targets of ``publish_iceberg``, by pyiceberg."""
