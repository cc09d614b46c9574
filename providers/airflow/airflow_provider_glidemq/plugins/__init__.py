"""The plugin for Airflow's pages."""
